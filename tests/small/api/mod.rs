//! What programs and users rely on: the library, REST, the command line, exit statuses and file formats.

mod endings;
mod examples;
mod golden;
mod golden_answers;
mod library;
mod messages;
mod terminal;
