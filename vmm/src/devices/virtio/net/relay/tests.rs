//! Tests with a guest and a server that have TCP stacks of their own, and with a guest that sends segments of
//! its choice.

mod bench;
mod ends;
mod hostile;
mod http;
mod limits;
mod segments;
mod upgrade;
