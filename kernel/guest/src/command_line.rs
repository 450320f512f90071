//! Orders given on the kernel command line: `volt.orders=echo hi;poweroff`.
//!
//! Semicolons separate the orders. A quoted value, as in `volt.orders="write /x a=b;sync"`, ends at the
//! closing quote. A bare value ends before the first word with a `=`, which is the next kernel parameter.

const OPTION: &str = "volt.orders=";

/// Returns the orders in a kernel command line, first to last.
pub(crate) fn orders(line: &str) -> Vec<String> {
    let Some(value) = value(line) else {
        return Vec::new();
    };
    let orders = value.split(';').map(str::trim);
    orders.filter(|order| !order.is_empty()).map(str::to_owned).collect()
}

fn value(line: &str) -> Option<String> {
    let start = line.find(OPTION)?;
    let rest = line[start + OPTION.len()..].trim_end();
    let quoted_whole = line[..start].ends_with('"').then_some(rest);
    if let Some(inside) = rest.strip_prefix('"').or(quoted_whole) {
        return Some(inside.split('"').next().unwrap_or_default().to_owned());
    }
    let mut words = rest.split(' ');
    let first = words.next().unwrap_or_default();
    let more = words.take_while(|word| !word.contains('='));
    Some(std::iter::once(first).chain(more).collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::orders;

    #[test]
    fn line_without_orders_yields_none() {
        assert!(orders("console=ttyS0 quiet\n").is_empty());
        assert!(orders("volt.orders= quiet=1\n").is_empty());
    }

    #[test]
    fn bare_value_ends_before_the_next_parameter() {
        let line = "console=ttyS0 volt.orders=echo hi;poweroff virtio_mmio.device=4K@0xd0000000:5\n";
        assert_eq!(orders(line), ["echo hi", "poweroff"]);
    }

    #[test]
    fn quoted_value_ends_at_its_quote() {
        assert_eq!(orders("volt.orders=\"write /x a=b; sync\" quiet"), ["write /x a=b", "sync"]);
        assert_eq!(orders("quiet \"volt.orders=echo a=b\" panic=-1"), ["echo a=b"]);
    }
}
