//! Requests under faults: each is answered, and the next one as if nothing had been.

use volt_tests::faults::{Injector, Sample, Side};
use volt_tests::{Boot, Guest, needs};

fn counting(injector: &Injector) -> Guest {
    let mut guest = Boot::small("count mib=1").faults(injector).start();
    guest.wait_for("count 9\n");
    guest
}

/// A request that calls the library, which it makes do little.
fn ask(guest: &Guest) -> (u16, String) {
    guest.ask("PATCH", "/vm", r#"{"state":"Resumed"}"#)
}

fn each(side: Side) {
    let injector = Injector::of(side);
    let guest = counting(&injector);
    let (answer, calls) = injector.record(|| ask(&guest));
    assert_eq!(answer.0, 204, "{answer:?}");
    for case in Sample::of("request", &calls, false) {
        // The first request of a VM may make calls that later ones spare.
        let mut guest = counting(&injector);
        let ((status, body), hit) = injector.inject(&case, || ask(&guest));
        match status {
            204 => {}
            400 => assert!(hit.is_some() && body.contains("cannot "), "{case}: {body}"),
            _ => panic!("{case}: {status}: {body}"),
        }
        assert_eq!(ask(&guest).0, 204, "{case}");
        guest.next_number("count");
        assert!(!guest.messages().contains("panicked"), "{case}: {}", guest.messages());
    }
}

#[test]
fn request_is_answered_after_a_failed_write() {
    needs!(kvm);
    each(Side::Writes);
}

#[test]
fn request_is_answered_after_a_failed_read() {
    needs!(kvm);
    each(Side::Reads);
}
