//! COM1: a 16550 (from vm-superio) between the guest and the console.

use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vm_superio::Trigger;
use vm_superio::serial::{SerialEvents, SerialState as UartState};
use volt_kernel::acpi_tables::aml;

use super::bus::BusDevice;
use super::lines::InterruptLine;
use super::{BusRange, Device};
use crate::console::Console;
use crate::counters::Counter;
use crate::error::{Error, Result};
use crate::persist::Persist;
use crate::run_control::{Control, RunState};
use crate::sync::lock;

/// Interval at which typing that waits for room checks whether the guest has ended.
const LOOK_UP: Duration = Duration::from_millis(100);

/// The serial port.
pub struct Serial {
    // Glue.
    line: InterruptLine,
    output: SerialOutput,
    room: Arc<Room>,
    // Volatile.
    uart: vm_superio::Serial<InterruptLine, Arc<Room>, SerialOutput>,
}

/// The registers and the receive FIFO of the UART.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SerialState(#[serde(with = "Registers")] UartState);

/// Serde's view of vm-superio's state. A field that vm-superio adds does not compile until it is listed here.
#[derive(Serialize, Deserialize)]
#[serde(remote = "UartState", deny_unknown_fields)]
struct Registers {
    baud_divisor_low: u8,
    baud_divisor_high: u8,
    interrupt_enable: u8,
    interrupt_identification: u8,
    line_control: u8,
    line_status: u8,
    modem_control: u8,
    modem_status: u8,
    scratch: u8,
    in_buffer: Vec<u8>,
}

impl Trigger for InterruptLine {
    type E = Error;

    /// Sends an edge, as on an ISA bus.
    fn trigger(&self) -> Result<()> {
        self.pulse()
    }
}

/// The guest's output.
#[derive(Clone, Debug)]
struct SerialOutput {
    console: Arc<Mutex<Console>>,
    control: Arc<Control>,
    room: Arc<Room>,
}

impl Write for SerialOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !lock(&self.console).write(bytes, || self.control.must_exit()) {
            self.room.dropped.add(bytes.len() as u64);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Room in the receive FIFO, with the threads that wait for it, and the bytes that went through the port.
#[derive(Debug, Default)]
pub(crate) struct Room {
    emptied: Mutex<u64>,
    changed: Condvar,
    /// Bytes that the guest read, and bytes that it wrote.
    pub(crate) received: Counter,
    pub(crate) sent: Counter,
    /// Those of the latter that a limit dropped.
    pub(crate) dropped: Counter,
}

impl SerialEvents for Room {
    fn buffer_read(&self) {
        self.received.add(1);
    }

    fn out_byte(&self) {
        self.sent.add(1);
    }

    fn tx_lost_byte(&self) {}

    fn in_buffer_empty(&self) {
        *lock(&self.emptied) += 1;
        self.changed.notify_all();
    }
}

impl Serial {
    /// Makes a port that interrupts on `line`.
    pub(crate) fn new(line: InterruptLine, console: Console, control: Arc<Control>) -> Self {
        let (console, room) = (Arc::new(Mutex::new(console)), Arc::new(Room::default()));
        let output = SerialOutput { console, control, room: Arc::clone(&room) };
        let uart = vm_superio::Serial::with_events(line.clone(), Arc::clone(&room), output.clone());
        Self { line, output, room, uart }
    }

    /// The counters of the port, which need no lock.
    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Calls `act` when the guest has written a whole line.
    pub(crate) fn at_line(&self, act: impl FnOnce() + Send + 'static) {
        lock(&self.output.console).at_line().set(act);
    }

    /// Tries again to write output that a stalled console has not taken.
    pub(crate) fn flush(&self) {
        lock(&self.output.console).write(&[], || true);
    }

    /// Types into a port. Waits while its FIFO is full and the guest runs.
    ///
    /// # Errors
    /// [`Error::NotNow`] if the guest has ended.
    pub(crate) fn type_in(port: &Mutex<Self>, mut bytes: &[u8]) -> Result<()> {
        let (room, control) = {
            let port = lock(port);
            (Arc::clone(&port.room), Arc::clone(&port.output.control))
        };
        while !bytes.is_empty() {
            let before = *lock(&room.emptied);
            bytes = &bytes[lock(port).receive(bytes)?..];
            if bytes.is_empty() {
                break;
            }
            if control.state() == RunState::Ended {
                return Err(Error::NotNow { act: "type into the console", state: "has ended" });
            }
            let full = |emptied: &mut u64| *emptied == before;
            drop(room.changed.wait_timeout_while(lock(&room.emptied), LOOK_UP, full));
        }
        Ok(())
    }

    /// Returns the number of bytes that the receive FIFO has room for.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn fifo_room(port: &Mutex<Self>) -> usize {
        lock(port).uart.fifo_capacity()
    }

    /// Puts as many bytes into the receive FIFO as fit. Returns their number.
    fn receive(&mut self, bytes: &[u8]) -> Result<usize> {
        let fitting = &bytes[..bytes.len().min(self.uart.fifo_capacity())];
        if fitting.is_empty() {
            return Ok(0);
        }
        self.uart.enqueue_raw_bytes(fitting).map_err(|error| {
            Error::host("interrupt the guest for console input", io::Error::other(error.to_string()))
        })
    }
}

impl BusDevice for Serial {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        data.fill(0xff);
        data[0] = self.uart.read(offset as u8);
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        // Fails only if KVM refuses the interrupt, which it does not for an existing line. The console never
        // fails.
        let _ = self.uart.write(offset as u8, data[0]);
    }
}

impl Device for Serial {
    fn aml(&self, place: &BusRange) -> Vec<u8> {
        let base = place.base as u16;
        let gsi = place.gsi.unwrap_or(0);
        volt_kernel::guest_aml(&aml::Device::new(
            "COM1".into(),
            vec![
                &aml::Name::new("_HID".into(), &aml::EISAName::new("PNP0501")),
                &aml::Name::new("_UID".into(), &aml::ZERO),
                &aml::Name::new(
                    "_CRS".into(),
                    &aml::ResourceTemplate::new(vec![
                        // Consumer, edge-triggered, active high, exclusive.
                        &aml::Interrupt::new(true, true, false, false, gsi),
                        &aml::IO::new(base, base, 1, place.len as u8),
                    ]),
                ),
            ],
        ))
    }
}

impl Persist for Serial {
    type State = SerialState;

    fn save(&self) -> Result<SerialState> {
        let Self { line: _, output: _, room: _, uart } = self;
        Ok(SerialState(uart.state()))
    }

    /// Sends an interrupt that is pending in the state again.
    fn restore(&mut self, state: &SerialState) -> Result<()> {
        let room = Arc::clone(&self.room);
        self.uart = vm_superio::Serial::from_state(&state.0, self.line.clone(), room, self.output.clone())
            .map_err(|error| Error::host("restore the serial port", io::Error::other(error.to_string())))?;
        Ok(())
    }
}

impl std::fmt::Debug for Serial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serial")
            .field("line", &self.line)
            .field("output", &self.output)
            .finish_non_exhaustive()
    }
}
