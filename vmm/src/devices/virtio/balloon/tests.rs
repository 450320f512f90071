//! The balloon with a driver that gives its memory, and with one that gives memory that it lacks.

use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

use vm_memory::{Bytes, GuestAddress};

use super::super::testing::{Driver, MEMORY, Part};
use super::*;
use crate::devices::virtio::feature::EVENT_IDX;
use crate::memory::backing::Backing;
use crate::memory::ram::GuestRam;
use crate::sync::lock;

const MIB: u64 = MEMORY >> 20;
const STATISTICS: usize = 2;
/// First page that neither rings nor buffers of the driver use.
const FREE: u64 = 0xc0_0000;

fn all() -> BalloonConfig {
    BalloonConfig {
        target_mib: 0,
        deflate_on_oom: true,
        statistics_interval: 1,
        reporting: true,
        hinting: true,
    }
}

/// A driver and its balloon in new memory. Each page from [`FREE`] on holds its own address.
struct BalloonDriver {
    driver: Driver,
    balloon: Arc<Mutex<Balloon>>,
    ram: GuestRam,
}

impl BalloonDriver {
    fn new(config: &BalloonConfig) -> Self {
        Self::with_features(config, !EVENT_IDX)
    }

    fn with_features(config: &BalloonConfig, wanted: u64) -> Self {
        let ram = GuestRam::reserve(MEMORY).unwrap();
        Backing::Fresh.map(&ram).unwrap();
        Self::in_memory(config, wanted, ram)
    }

    fn in_memory(config: &BalloonConfig, wanted: u64, ram: GuestRam) -> Self {
        let balloon = Balloon::new(config, MIB).unwrap();
        let balloon = Arc::new(Mutex::new(balloon));
        let device: Arc<Mutex<dyn VirtioDevice>> = balloon.clone();
        let guest = Self { driver: Driver::with_memory(device, ram.clone(), wanted), balloon, ram };
        for page in (FREE..MEMORY).step_by(PAGE as usize) {
            guest.write(page, page);
        }
        guest
    }

    fn write(&self, at: u64, value: u64) {
        self.driver.ram.guest().write_obj(value, GuestAddress(at)).unwrap();
    }

    fn read(&self, at: u64) -> u64 {
        self.driver.ram.guest().read_obj(GuestAddress(at)).unwrap()
    }

    fn blocks(&self) -> u64 {
        self.ram.base().file.metadata().unwrap().blocks()
    }

    fn returned(&self) -> u64 {
        lock(&self.balloon).returned_pages()
    }

    fn ignored(&self) -> u64 {
        lock(&self.balloon).ignored_pages()
    }

    fn inflate(&mut self, pfns: &[u32]) {
        let list: Vec<u8> = pfns.iter().flat_map(|pfn| pfn.to_le_bytes()).collect();
        self.driver.ask(INFLATE, &[Part::Out(&list)]);
    }

    /// Sends pages of guest memory as a chain, as a driver reports them.
    fn give(&mut self, queue: usize, pages: &[(u64, u32)]) {
        for (number, page) in pages.iter().enumerate() {
            let (flags, next) = if number + 1 < pages.len() { (3, number as u16 + 1) } else { (2, 0) };
            self.driver.describe(queue, number as u16, *page, flags, next);
        }
        self.driver.offer(queue, 0);
        self.driver.wait(queue);
    }

    /// Reads the configuration as the driver does: target, actual, hinting command.
    fn config(&mut self) -> [u32; 3] {
        [0x100, 0x104, 0x108].map(|register| self.driver.get(register))
    }

    /// Changes the balloon and tells the driver, as the VM does.
    fn change(&self, change: impl FnOnce(&mut Balloon) -> Result<()>) {
        change(&mut lock(&self.balloon)).unwrap();
        self.driver.transport.config_changed();
    }

    fn wait_for_config_interrupt(&mut self) {
        self.driver.until("a config interrupt", |driver| (driver.get(0x60) & 2 != 0).then_some(()));
        self.driver.set(0x64, 2);
    }
}

fn pfn(at: u64) -> u32 {
    (at / PAGE) as u32
}

/// Features without event indices, and of the device's only these.
fn only(features: u64) -> u64 {
    0xffff_ffff_0000_0000 | features
}

#[test]
fn inflated_pages_return_to_the_host() {
    let mut guest = BalloonDriver::new(&all());
    let before = guest.blocks();
    // In Linux's order, from the last to the first.
    let pfns: Vec<u32> = (pfn(FREE)..pfn(MEMORY)).rev().collect();
    guest.inflate(&pfns);
    // Without the page of the list itself.
    assert!(guest.blocks() + (MEMORY - FREE) / 512 <= before + 8, "{before} {}", guest.blocks());
    assert_eq!(guest.returned(), pfns.len() as u64);
    assert_eq!((guest.read(FREE), guest.read(MEMORY - PAGE), guest.ignored()), (0, 0, 0));
    guest.driver.set(0x104, 1024);
    assert_eq!((guest.config()[1], lock(&guest.balloon).actual()), (1024, 4));

    guest.driver.ask(DEFLATE, &[Part::Out(&pfn(FREE).to_le_bytes())]);
    guest.write(FREE, 5);
    assert_eq!(guest.read(FREE), 5);
}

#[test]
fn inflated_pages_of_a_clone_show_its_base_and_leave_its_sibling_alone() {
    let original = GuestRam::reserve(MEMORY).unwrap();
    Backing::Fresh.map(&original).unwrap();
    original.guest().write_obj(77u64, GuestAddress(FREE)).unwrap();
    let mut clones = [0, 1].map(|_| {
        let ram = GuestRam::reserve(MEMORY).unwrap();
        Backing::Private { base: original.base().file, pages: None }.map(&ram).unwrap();
        BalloonDriver::in_memory(&all(), !EVENT_IDX, ram)
    });
    clones[0].inflate(&[pfn(FREE), pfn(FREE) + 1]);
    let [one, other] = clones;
    assert_eq!([one.read(FREE), one.read(FREE + PAGE), one.read(FREE + 2 * PAGE)], [77, 0, FREE + 2 * PAGE]);
    assert_eq!([other.read(FREE), other.read(FREE + PAGE)], [FREE, FREE + PAGE]);
    assert_eq!(original.guest().read_obj::<u64>(GuestAddress(FREE)).unwrap(), 77);
}

#[test]
fn invalid_page_numbers_are_skipped() {
    let mut guest = BalloonDriver::new(&all());
    let end = pfn(MEMORY);
    guest.inflate(&[u32::MAX, pfn(FREE), end, end - 1, pfn(FREE), end, u32::MAX - 1]);
    assert_eq!((guest.read(FREE), guest.read(MEMORY - PAGE), guest.read(FREE + PAGE)), (0, 0, FREE + PAGE));
    assert_eq!((guest.ignored(), guest.driver.needs_reset()), (3, false));
}

#[test]
fn list_in_pieces_or_with_odd_length_is_read() {
    let mut guest = BalloonDriver::new(&all());
    let list = [pfn(FREE).to_le_bytes(), pfn(FREE + 2 * PAGE).to_le_bytes()].concat();
    guest.driver.ask(INFLATE, &[Part::Out(&list[..1]), Part::Out(&list[1..6]), Part::Out(&list[6..])]);
    let odd = [&pfn(FREE + 4 * PAGE).to_le_bytes()[..], &[1, 2, 3]].concat();
    guest.driver.ask(INFLATE, &[Part::Out(&odd)]);
    guest.driver.ask(INFLATE, &[Part::Out(&[9])]);
    guest.driver.ask(INFLATE, &[Part::In(8)]);
    let gone = |number| guest.read(FREE + number * PAGE) == 0;
    assert_eq!([0, 1, 2, 3, 4, 5].map(gone), [true, false, true, false, true, false]);
    assert_eq!(guest.ignored(), 2);
}

#[test]
fn list_of_many_turns_is_handled_completely() {
    let mut guest = BalloonDriver::new(&all());
    let mut pfns = vec![pfn(MEMORY); 3 * PFNS_PER_TURN + 5];
    *pfns.last_mut().unwrap() = pfn(FREE);
    pfns[0] = pfn(FREE + PAGE);
    guest.inflate(&pfns);
    assert_eq!((guest.read(FREE), guest.read(FREE + PAGE)), (0, 0));
    // Once for each turn, because duplicates are found within a turn.
    assert_eq!(guest.ignored(), 4);
    guest.inflate(&[pfn(FREE + 2 * PAGE)]);
    assert_eq!(guest.read(FREE + 2 * PAGE), 0, "the next list is read from its beginning");
}

fn statistic(tag: u16, value: u64) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &value.to_le_bytes()].concat()
}

#[test]
fn statistics_are_requested_and_read() {
    for wanted in [!EVENT_IDX, !0] {
        let mut guest = BalloonDriver::with_features(&all(), wanted);
        assert_eq!(lock(&guest.balloon).statistics(), None);
        let buffer =
            [statistic(4, 4096), statistic(0x7777, 1), statistic(5, 1 << 24), vec![6, 0, 1]].concat();
        guest.driver.send(STATISTICS, &[Part::Out(&buffer)]);
        let first = guest.driver.wait(STATISTICS);
        assert_eq!(first.len, 0);
        let expected = Statistics { free_memory: Some(4096), total_memory: Some(1 << 24), ..<_>::default() };
        assert_eq!(lock(&guest.balloon).statistics(), Some(expected));

        guest.driver.send(STATISTICS, &[Part::Out(&statistic(10, 3))]);
        guest.driver.wait(STATISTICS);
        let expected = Statistics { oom_kills: Some(3), ..<_>::default() };
        assert_eq!(lock(&guest.balloon).statistics(), Some(expected));
    }
}

#[test]
fn changed_interval_asks_for_statistics_at_once() {
    let mut guest = BalloonDriver::new(&BalloonConfig { statistics_interval: 3600, ..all() });
    guest.driver.send(STATISTICS, &[Part::Out(&statistic(7, 9))]);
    let balloon = Arc::clone(&guest.balloon);
    guest.driver.until("they are read", |_| lock(&balloon).statistics());
    guest.change(|balloon| balloon.set_interval(1800));
    guest.driver.set(0x50, STATISTICS as u32);
    assert_eq!(guest.driver.wait(STATISTICS).head, 0, "the buffer is given back, which asks for new ones");
    let off = lock(&guest.balloon).set_interval(0).unwrap_err().to_string();
    assert!(off.contains("balloon statistics: 0 turns them off"), "{off}");
    let mut without = Balloon::new(&BalloonConfig::default(), MIB).unwrap();
    without.set_interval(0).unwrap();
    let on = without.set_interval(1).unwrap_err().to_string();
    assert!(on.contains("created without statistics"), "{on}");
}

#[test]
fn statistics_survive_a_move_with_the_drivers_buffer() {
    let mut guest = BalloonDriver::new(&BalloonConfig { statistics_interval: 3600, ..all() });
    guest.driver.send(STATISTICS, &[Part::Out(&statistic(7, 9))]);
    let balloon = Arc::clone(&guest.balloon);
    guest.driver.until("they are read", |_| lock(&balloon).statistics());
    assert_eq!(guest.driver.poll(STATISTICS), None, "it is held");
    let next = Balloon::new(&all(), MIB).unwrap();
    guest.driver.move_to(next);
    assert_eq!(guest.driver.wait(STATISTICS).head, 0, "it is given back by the next device when it is time");
}

#[test]
fn only_whole_reported_pages_return_to_the_host() {
    let mut guest = BalloonDriver::new(&all());
    let before = guest.blocks();
    guest.give(
        4,
        &[(FREE, 256 * PAGE as u32), (FREE + 300 * PAGE + 8, 2 * PAGE as u32), (FREE + 400 * PAGE, 100)],
    );
    assert!(guest.blocks() + 257 * 8 <= before, "{before} {}", guest.blocks());
    let gone = [0, 255, 256, 300, 301, 302, 400].map(|page| guest.read(FREE + page * PAGE) == 0);
    assert_eq!(gone, [true, true, false, false, true, false, false]);
    assert_eq!((guest.returned(), guest.ignored()), (257, 1));
}

#[test]
fn feature_that_the_driver_refuses_has_no_queue() {
    for (taken, queue) in [
        (feature::REPORTING, 2),
        (feature::REPORTING | feature::STATS_VQ, 3),
        (feature::REPORTING | feature::FREE_PAGE_HINT, 3),
    ] {
        let mut guest = BalloonDriver::with_features(&all(), only(taken));
        guest.give(queue, &[(FREE, PAGE as u32)]);
        assert_eq!(guest.read(FREE), 0, "{taken:#x}");
    }
    let mut guest = BalloonDriver::new(&BalloonConfig { reporting: true, ..BalloonConfig::default() });
    guest.driver.set(0x30, 3);
    assert_eq!(guest.driver.get(0x34), 0, "a fourth queue without a feature for it");
    guest.give(2, &[(FREE, PAGE as u32)]);
    assert_eq!(guest.read(FREE), 0);
}

#[test]
fn hints_are_taken_from_start_to_stop() {
    const HINTS: usize = 3;
    let mut guest = BalloonDriver::new(&all());
    let page = |number| (FREE + number * PAGE, PAGE as u32);
    guest.give(HINTS, &[page(0)]);
    assert_eq!(guest.read(FREE), FREE, "nobody asked");

    guest.change(|balloon| balloon.start_hinting(false));
    guest.wait_for_config_interrupt();
    let asked = guest.config()[2];
    assert!(asked >= 2);
    guest.driver.ask(HINTS, &[Part::Out(&(asked + 1).to_le_bytes())]);
    guest.give(HINTS, &[page(1)]);
    assert_eq!(guest.read(FREE + PAGE), FREE + PAGE, "an answer to something else");
    guest.driver.ask(HINTS, &[Part::Out(&asked.to_le_bytes())]);
    assert!(lock(&guest.balloon).hinting().unwrap().is_hinting());
    guest.give(HINTS, &[page(2), page(3)]);
    assert_eq!((guest.read(FREE + 2 * PAGE), guest.read(FREE + 3 * PAGE)), (0, 0));

    // The driver has no more pages, and learns that it may reuse them.
    guest.driver.ask(HINTS, &[Part::Out(&0u32.to_le_bytes())]);
    guest.wait_for_config_interrupt();
    assert_eq!(guest.config()[2], 1);
    guest.give(HINTS, &[page(4)]);
    assert_eq!(guest.read(FREE + 4 * PAGE), FREE + 4 * PAGE);

    // The host may end the request before.
    guest.change(|balloon| balloon.start_hinting(false));
    assert_eq!(guest.config()[2], asked + 1);
    guest.driver.ask(HINTS, &[Part::Out(&(asked + 1).to_le_bytes())]);
    guest.change(Balloon::stop_hinting);
    guest.give(HINTS, &[page(5)]);
    assert_eq!((guest.config()[2], guest.read(FREE + 5 * PAGE)), (1, FREE + 5 * PAGE));

    // Or it keeps the pages until it ends the request.
    guest.change(|balloon| balloon.start_hinting(true));
    guest.driver.ask(HINTS, &[Part::Out(&(asked + 2).to_le_bytes())]);
    guest.driver.ask(HINTS, &[Part::Out(&0u32.to_le_bytes())]);
    assert_eq!(guest.config()[2], asked + 2, "no more pages, and not done");
    guest.change(Balloon::stop_hinting);
    assert_eq!(guest.config()[2], 1);

    guest.driver.send(HINTS, &[Part::Out(&[1, 2])]);
    guest.driver.wait_broken();
    let without = BalloonDriver::new(&BalloonConfig::default());
    let error = lock(&without.balloon).start_hinting(false).unwrap_err().to_string();
    assert_eq!(error, "balloon hinting: this VM's balloon was created without hinting");
}

#[test]
fn target_reaches_the_driver_and_may_not_exceed_memory() {
    let mut guest = BalloonDriver::new(&BalloonConfig { target_mib: 3, ..all() });
    assert_eq!(guest.config()[0], 3 * 256);
    guest.change(|balloon| balloon.set_target(16));
    guest.wait_for_config_interrupt();
    assert_eq!((guest.config()[0], lock(&guest.balloon).target()), (16 * 256, 16));

    for mib in [17, 1 << 56, u64::MAX] {
        let error = lock(&guest.balloon).set_target(mib).unwrap_err().to_string();
        assert_eq!(error, format!("balloon target_mib: {mib} MiB asked for; the guest has 16"));
    }
    let config = BalloonConfig { target_mib: 17, ..all() };
    assert!(Balloon::new(&config, MIB).is_err());
}

#[test]
fn target_actual_and_hinting_survive_a_move_and_a_reset_forgets_the_drivers() {
    let mut guest = BalloonDriver::new(&all());
    guest.change(|balloon| balloon.set_target(5));
    guest.change(|balloon| balloon.start_hinting(false));
    guest.driver.set(0x104, 1000);
    let before = guest.config();
    let next = Balloon::new(&BalloonConfig { target_mib: 1, ..all() }, MIB).unwrap();
    guest.driver.move_to(next);
    assert_eq!((guest.config(), before[..2].to_vec()), (before, vec![5 * 256, 1000]));
    guest.inflate(&[pfn(FREE)]);
    assert_eq!(guest.read(FREE), 0);
    guest.driver.set(0x70, 0);
    assert_eq!(guest.config(), [5 * 256, 0, 0]);
}

#[test]
fn driver_writes_only_its_own_field() {
    let mut guest = BalloonDriver::new(&all());
    for register in [0x100, 0x108, 0x10c, 0xffc] {
        guest.driver.set(register, 0xffff_ffff);
    }
    assert_eq!(guest.config(), [0, 0, 0]);
    let mut balloon = lock(&guest.balloon);
    balloon.write_config(2, &[1, 2, 3, 4, 5, 6, 7, 8]);
    balloon.write_config(u64::MAX, &[9, 9]);
    assert_eq!(balloon.actual, u32::from_le_bytes([3, 4, 5, 6]));
}
