//! Tests of the stream to passt, cut at any byte, and of its end.

use super::*;

#[test]
fn passt_ends_with_its_socket_as_when_its_owner_is_killed() {
    if let Err(error) = std::process::Command::new("passt").arg("--version").output() {
        return crate::testing::skip(&format!("no passt here ({error})"));
    }
    let mut passt = Passt::start(&Options::default(), [2; 6]).unwrap();
    passt.socket.shutdown(std::net::Shutdown::Both).unwrap();
    crate::testing::limited("passt ends", || passt.child.wait()).unwrap();
    let error = passt.receive(Pieces::default()).unwrap_err().to_string();
    assert!(error.starts_with("passt has ended: "), "{error}");
}

#[test]
fn guest_of_every_passt_has_the_same_addresses() {
    let fixed = "--no-map-gw --address 10.118.111.15 --netmask 24 --gateway 10.118.111.2 \
                 --address fd76:6f6c:7400::15 --gateway fd76:6f6c:7400::2";
    let words = |options: &Options| arguments(options).join(" ");
    assert!(words(&Options::default()).ends_with(fixed), "{}", words(&Options::default()));
    let all = Options { forward: vec![(8080, 80)], mtu: Some(1400), dns_forward: true };
    let chosen = "--tcp-ports 127.0.0.1/8080:80 --mtu 1400 --dns-forward 10.118.111.3 \
                  --dns-forward fd76:6f6c:7400::3";
    assert!(words(&all).ends_with(&format!("{fixed} {chosen}")), "{}", words(&all));
}

#[test]
fn frames_are_whole_after_a_stream_that_is_cut_anywhere() {
    let (device, mut other) = UnixStream::pair().unwrap();
    device.set_nonblocking(true).unwrap();
    let mut passt = Passt::with(
        &Options::default(),
        Program::new("true").start().unwrap(),
        device,
        io::pipe().unwrap().0,
    );
    let mut buffer = vec![0; header::LEN + MAX_FRAME];
    let mut receive = |passt: &mut Passt| {
        let mut into = Pieces::default();
        into.push_own(&mut buffer);
        passt.receive(into).map(|len| buffer[header::LEN..len].to_vec())
    };
    let frames: Vec<Vec<u8>> =
        [60, 14, MAX_FRAME, 1514, MAX_FRAME].iter().map(|len| vec![*len as u8; *len]).collect();
    let prefixed = frames.iter().flat_map(|frame| [&(frame.len() as u32).to_be_bytes(), &frame[..]].concat());
    let mut got = Vec::new();
    for part in prefixed.collect::<Vec<u8>>().chunks(997) {
        other.write_all(part).unwrap();
        while let Ok(frame) = receive(&mut passt) {
            got.push(frame);
        }
    }
    assert!(got == frames, "{:?}", got.iter().map(Vec::len).collect::<Vec<_>>());
    other.write_all(&0x1_0000_u32.to_be_bytes()).unwrap();
    assert_eq!(receive(&mut passt).unwrap_err().kind(), ErrorKind::InvalidData);

    // The sending direction, through a socket that takes a part.
    other.set_nonblocking(true).unwrap();
    let (mut sent, mut seen, mut full) = (Vec::new(), Vec::<u8>::new(), 0);
    for number in 0..40_u8 {
        let mut bytes = vec![number; header::LEN + 50_000];
        loop {
            let mut frame = Pieces::default();
            let (first, rest) = bytes.split_at_mut(header::LEN);
            frame.push_own(first);
            frame.push_own(rest);
            match passt.send(frame) {
                Ok(()) => break,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            full += 1;
            let mut some = [0; 30_000];
            let count = other.read(&mut some).unwrap();
            seen.extend(&some[..count]);
        }
        sent.extend(50_000_u32.to_be_bytes());
        sent.extend(&bytes[header::LEN..]);
    }
    while seen.len() < sent.len() {
        let mut some = [0; 30_000];
        let count = other.read(&mut some).unwrap_or(0);
        seen.extend(&some[..count]);
        let _ = passt.flush();
    }
    assert!(full > 0 && seen == sent);
}
