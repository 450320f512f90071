//! Answers to requests that do not pass.

/// Most bytes of a reason in an answer.
const LONGEST_REASON: usize = 1024;

/// The answer to a request whose host is denied.
pub(super) fn forbidden(reason: &str) -> Vec<u8> {
    answer("403 Forbidden", reason)
}

/// The answer to an ambiguous request.
pub(super) fn bad_request(reason: &str) -> Vec<u8> {
    answer("400 Bad Request", reason)
}

fn answer(status: &str, reason: &str) -> Vec<u8> {
    let reason = &reason[..reason.floor_char_boundary(LONGEST_REASON)];
    let len = reason.len() + 1;
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len}\r\n\
         Connection: close\r\n\r\n"
    );
    format!("{head}{reason}\n").into_bytes()
}
