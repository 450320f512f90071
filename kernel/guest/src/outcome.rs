//! The outcome of an order.

/// Success, or the text after `error <name>: `.
pub(crate) type Outcome = Result<(), String>;
