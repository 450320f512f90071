//! The interfaces: library, REST, terminal, messages, exit statuses and file formats.

mod endings;
mod examples;
mod golden;
mod golden_answers;
mod library;
mod logging;
mod messages;
mod metrics;
mod native;
mod operations;
mod terminal;
