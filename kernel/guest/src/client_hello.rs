//! A first message of TLS, for the guest's init and, by the path of this file, for benchmarks and tests.

/// The first message of a client of TLS, with a server's name and a key as long as that of a browser (RFC
/// 8446, section 4.1.2; RFC 6066, section 3).
pub(crate) fn client_hello(name: &str) -> Vec<u8> {
    let extension = |kind: u8, content: &[u8]| [&[0, kind][..], &vector(2, content)].concat();
    let names = vector(2, &[&[0][..], &vector(2, name.as_bytes())].concat());
    let extensions = [extension(51, &[7; 1216]), extension(0, &names)].concat();
    let (suites, compressions) = (vector(2, &[0x13, 1]), vector(1, &[0]));
    let body = [&[3, 3][..], &[7; 32], &vector(1, &[9; 32]), &suites, &compressions, &vector(2, &extensions)];
    let message = [&[1][..], &vector(3, &body.concat())].concat();
    [&[22, 3, 1][..], &vector(2, &message)].concat()
}

/// Bytes behind their number, which takes `len` bytes.
pub(crate) fn vector(len: usize, content: &[u8]) -> Vec<u8> {
    [&content.len().to_be_bytes()[8 - len..], content].concat()
}
