//! The outcome of an order.

/// Ok, or the text after `error <name>: `.
pub(crate) type Outcome = Result<(), String>;
