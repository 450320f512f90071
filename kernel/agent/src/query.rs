//! Query strings.

/// Decoded pairs of a query string.
#[derive(Debug, Default)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query string.
    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty());
        Self(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name), decode(value))
                })
                .collect(),
        )
    }

    /// The first value of a name, if it is not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        let Self(pairs) = self;
        pairs.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }
}

/// Undoes percent-encoding and plus signs. Keeps a percent sign that no two hexadecimal digits follow.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 3).and_then(|pair| std::str::from_utf8(pair).ok());
        let escaped = digits.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match (bytes[at], escaped) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                at += 2;
            }
            (b'+', _) => decoded.push(b' '),
            (byte, _) => decoded.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded() {
        let query = Query::parse("path=%2Ftmp%2Fa+b%C3%A9&username=&x=100%");
        assert_eq!(query.get("path"), Some("/tmp/a bé"));
        assert_eq!(query.get("username"), None);
        assert_eq!(query.get("x"), Some("100%"));
    }
}
