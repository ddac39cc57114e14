//! The bad inputs, each with the answer it must get, and the machine they are tried on.

mod channels;
mod mappings;
mod memory;
mod objects;
mod system_calls;
mod unified;

use vrampager_nv_abi::{Handle, Status, class};
use vrampager_nv_driver::Errno;
use zerocopy::FromZeros;

use crate::client::{Client, Gpu, SetupError, Stage, channel_params};
use crate::nodes::{Answer, Nodes};
use crate::report::{Outcome, Report, Tried};

/// All rows, by what they are about.
const GROUPS: [(&str, &[Row]); 9] = [
    ("objects", objects::OBJECTS),
    ("controls", objects::CONTROLS),
    ("memory", memory::ROWS),
    ("CPU mappings", mappings::CPU),
    ("mappings of the resource manager", mappings::DMA),
    ("channels", channels::ROWS),
    ("external ranges", unified::RANGES),
    ("registrations", unified::REGISTRATIONS),
    ("system calls", system_calls::ROWS),
];

/// A bad input.
struct Row {
    what: &'static str,
    needs: &'static [Needs],
    expected: Answer,
    attempt: Attempt,
}

/// Gives the bad input to the driver; undoes what it needed for that.
type Attempt = fn(&mut Machine<'_>) -> Result<(), Answer>;

/// What a row needs besides a GPU.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// A second GPU.
    Two,
    /// A device instance without a GPU.
    Fewer,
    /// A CPU-visible window of [`WINDOW`] bytes.
    Window,
    /// A kernel that wants UVM tied to the process.
    Tie,
}

impl Row {
    const fn status(what: &'static str, expected: Status, attempt: Attempt) -> Self {
        let (needs, expected) = (&[] as &[Needs], Answer::Status(expected));
        Self {
            what,
            needs,
            expected,
            attempt,
        }
    }

    const fn errno(what: &'static str, expected: Errno, attempt: Attempt) -> Self {
        let (needs, expected) = (&[] as &[Needs], Answer::Errno(expected.number()));
        Self {
            what,
            needs,
            expected,
            attempt,
        }
    }

    const fn needing(self, needs: &'static [Needs]) -> Self {
        Self { needs, ..self }
    }
}

/// Where a machine has its memory: below 40 bits, as channels want it.
const VA: u64 = 0x20_0000_0000;
const DATA: u64 = VA + (64 << 20);
/// Addresses that nothing uses.
const FREE: u64 = VA + (32 << 20);
const MIB: u64 = 1 << 20;
/// CPU-visible window for rows that map up to two buffers.
const WINDOW: u64 = 2 * MIB;
/// Device instances that a driver has.
const INSTANCES: usize = 32;
/// A handle that names nothing.
const UNKNOWN: Handle = 0xDEAD;

/// A process with a queue and a mapped buffer on one GPU, and another GPU if there is one, which
/// is no peer.
struct Machine<'a> {
    client: Client<&'a mut dyn Nodes>,
    one: Gpu,
    two: Option<Gpu>,
    /// How many there are in all.
    gpus: usize,
    /// Bytes of the CPU-visible window.
    window: u64,
    classes: Classes,
    group: Handle,
    share: Handle,
    channel: Handle,
    /// A mapped buffer of 1 MiB at [`DATA`].
    memory: Handle,
}

/// Classes of the GPU's generation, and one that is of another.
struct Classes {
    channel: u32,
    copy: u32,
    doorbell: u32,
    foreign: u32,
}

impl Classes {
    fn of(list: &[u32]) -> Result<Self, SetupError> {
        let pick = |kind, known: [u32; 2]| {
            let found = known.into_iter().find(|class| list.contains(class));
            found.ok_or(SetupError::NoClass { kind })
        };
        let copies = [class::AMPERE_DMA_COPY_B, class::BLACKWELL_DMA_COPY_B];
        let copy = pick("copy", copies)?;
        let [ampere, blackwell] = copies;
        Ok(Self {
            channel: pick(
                "channel",
                [
                    class::AMPERE_CHANNEL_GPFIFO_A,
                    class::BLACKWELL_CHANNEL_GPFIFO_A,
                ],
            )?,
            copy,
            doorbell: pick(
                "doorbell",
                [class::TURING_USERMODE_A, class::HOPPER_USERMODE_A],
            )?,
            foreign: if copy == ampere { blackwell } else { ampere },
        })
    }
}

impl<'a> Machine<'a> {
    fn new(nodes: &'a mut dyn Nodes, minor: u32) -> Result<Self, SetupError> {
        let mut client = Client::new(nodes)?;
        let cards = client.cards()?;
        let wanted = cards.iter().find(|card| card.minor == minor);
        let one = client.gpu(*wanted.ok_or(SetupError::NoGpu { minor })?)?;
        let two = match cards.iter().find(|card| card.minor != minor) {
            Some(card) => Some(client.gpu(*card)?),
            None => None,
        };
        let list = client.classes(one.device)?;
        let window = client.bar1(one)?;
        let mut machine = Self {
            client,
            one,
            two,
            gpus: cards.len(),
            window,
            classes: Classes::of(&list)?,
            group: 0,
            share: 0,
            channel: 0,
            memory: 0,
        };
        machine.add_queue()?;
        machine.memory = machine.client.buffer(one, DATA, MIB)?;
        Ok(machine)
    }

    /// A registered channel whose memory is at [`VA`] and whose resources are 4 MiB behind it.
    fn add_queue(&mut self) -> Result<(), SetupError> {
        let (client, gpu) = (&mut self.client, self.one);
        let memory = client.buffer(gpu, VA, MIB)?;
        let mut params = client.memory_params(0x1000);
        let notifier = client.alloc(gpu.device, class::NV01_MEMORY_SYSTEM, &mut params);
        let notifier = notifier.stage("allocate host memory")?;
        let mut params = class::ChannelGroupAlloc::new_zeroed();
        params.engine_type = class::engine::GRAPHICS;
        let group = client.alloc(gpu.device, class::KEPLER_CHANNEL_GROUP_A, &mut params);
        self.group = group.stage("allocate channel group")?;
        let mut params = class::ContextShareAlloc::new_zeroed();
        params.vaspace = gpu.vaspace;
        let share = client.alloc(self.group, class::FERMI_CONTEXT_SHARE_A, &mut params);
        self.share = share.stage("allocate subcontext")?;
        let params = channel_params(VA, self.share, memory, notifier);
        let channel = client.channel(self.group, self.classes.channel, &params);
        self.channel = channel.stage("allocate channel")?;
        let mut packet = client.register_packet(gpu, self.channel, VA + (4 << 20));
        let done = client.uvm(vrampager_nv_abi::uvm::REGISTER_CHANNEL, &mut packet);
        done.stage("register channel")
    }

    /// The second GPU, for rows that need one.
    fn two(&self) -> Gpu {
        self.two.expect("rows that use it say that they need it")
    }

    fn lacks(&self, needs: Needs) -> Option<&'static str> {
        let (there, why) = match needs {
            Needs::Two => (self.two.is_some(), "needs a second GPU"),
            Needs::Fewer => (self.gpus < INSTANCES, "needs fewer than 32 GPUs"),
            Needs::Window => (self.window >= WINDOW, "needs a CPU-visible window of 2 MiB"),
            Needs::Tie => (
                self.client.tie.is_some(),
                "the kernel does not want UVM tied to the process",
            ),
        };
        (!there).then_some(why)
    }

    fn try_row(&mut self, row: &Row) -> Outcome {
        if let Some(why) = row.needs.iter().find_map(|&needs| self.lacks(needs)) {
            return Outcome::Skipped(why);
        }
        let before = self.client.nodes().live();
        let opened = self.client.opened();
        let result = (row.attempt)(self);
        self.client.close_after(opened);
        let after = self.client.nodes().live().map(|mut live| {
            // A row may close a file of the machine.
            live.files = before.map_or(0, |before| before.files);
            live
        });
        let answer = result.err().unwrap_or(Answer::Status(Status::OK));
        if answer != row.expected {
            Outcome::Other(answer)
        } else if after != before {
            Outcome::Changed
        } else {
            Outcome::Same
        }
    }
}

/// Gives every bad input of the table to the driver, each on a GPU brought up anew, and compares
/// the answers.
///
/// # Errors
///
/// [`SetupError`] if the GPU cannot be brought up.
pub fn run(nodes: &mut dyn Nodes, minor: u32) -> Result<Report, SetupError> {
    let release = Client::new(&mut *nodes)?.release.clone();
    let mut rows = Vec::new();
    for (group, table) in GROUPS {
        for row in table {
            let mut machine = Machine::new(nodes, minor)?;
            rows.push(Tried {
                group,
                what: row.what,
                expected: row.expected,
                outcome: machine.try_row(row),
            });
        }
    }
    Ok(Report { release, rows })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use vrampager_nv_abi::Node;
    use vrampager_nv_driver::{Config, Live};

    use super::*;
    use crate::SimNodes;

    fn report(machine: &str) -> Report {
        run(&mut SimNodes::new(Config::parse(machine).unwrap()), 0).unwrap()
    }

    #[test]
    fn the_simulated_driver_of_every_release_and_generation_answers_as_the_table_says() {
        for release in ["570.144", "580.82.07", "595.45.04"] {
            for arch in ["ampere", "ada", "blackwell"] {
                let machine = format!("gpus=2,vram=64M,release={release},arch={arch}");
                let report = report(&machine);
                assert!(report.passed(), "{machine}\n{report}");
                assert_eq!(report.tried(), report.rows.len(), "{machine}\n{report}");
            }
        }
    }

    #[test]
    fn the_table_has_many_rows_and_none_twice() {
        let rows = report("gpus=2").rows;
        assert!(rows.len() >= 60, "{} rows", rows.len());
        let names: BTreeSet<_> = rows.iter().map(|row| (row.group, row.what)).collect();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn rows_that_a_machine_cannot_be_asked_are_skipped() {
        for (machine, skipped) in [("gpus=1", 5), ("gpus=32", 1), ("gpus=2,bar1=64K", 7)] {
            let report = report(machine);
            assert!(report.passed(), "{report}");
            assert_eq!(report.skipped(), skipped, "{report}");
            assert_eq!(report.tried(), report.rows.len() - skipped);
        }
    }

    #[test]
    fn another_answer_is_a_failure_that_says_what_came_instead() {
        // The machine of the first row makes the range for its ring, then that for its buffer;
        // the failure hits the first range that a row asks for.
        let machines = |rows: usize| 2 * rows + 1;
        let before = report("gpus=2").rows;
        let row = before.iter().position(|row| row.group == "external ranges");
        let nth = machines(row.unwrap() + 1);
        let report = report(&format!("gpus=2,fail=uvm:73:{nth}:0x40"));
        let failed: Vec<_> = report.rows.iter().filter(|row| row.failed()).collect();
        assert_eq!(failed.len(), 1, "{report}");
        let expected = Outcome::Other(Answer::Status(Status::INVALID_STATE));
        assert_eq!(failed[0].outcome, expected);
        assert!(report.to_string().contains("got INVALID_STATE (0x40)"));
    }

    /// A process that is killed before one of its system calls: it makes no more of them, and does
    /// not close its files.
    struct Mortal {
        nodes: SimNodes,
        calls_left: usize,
        open: BTreeSet<i32>,
    }

    impl Mortal {
        fn new(calls: usize) -> Self {
            Self {
                nodes: SimNodes::new(Config::parse("gpus=2").unwrap()),
                calls_left: calls,
                open: BTreeSet::new(),
            }
        }

        fn live_another_call(&mut self) -> Result<(), Answer> {
            let killed = Answer::Errno(4);
            self.calls_left = self.calls_left.checked_sub(1).ok_or(killed)?;
            Ok(())
        }

        /// What the kernel does with the files of a process that is gone.
        fn bury(&mut self, newest_first: bool) {
            let mut open: Vec<i32> = std::mem::take(&mut self.open).into_iter().collect();
            if newest_first {
                open.reverse();
            }
            for fd in open {
                self.nodes.close(fd);
            }
        }
    }

    impl Nodes for Mortal {
        fn open(&mut self, node: Node) -> Result<i32, Answer> {
            self.live_another_call()?;
            let fd = self.nodes.open(node)?;
            self.open.insert(fd);
            Ok(fd)
        }

        fn close(&mut self, _: i32) {}

        fn ioctl(&mut self, fd: i32, request: u32, packet: &mut [u8]) -> Result<(), Answer> {
            self.live_another_call()?;
            self.nodes.ioctl(fd, request, packet)
        }

        fn mmap(&mut self, fd: i32, len: u64, offset: u64) -> Result<(), Answer> {
            self.live_another_call()?;
            self.nodes.mmap(fd, len, offset)
        }

        fn memory(&mut self) -> &mut [u8] {
            self.nodes.memory()
        }

        fn address(&self) -> u64 {
            self.nodes.address()
        }

        fn live(&self) -> Option<Live> {
            self.nodes.live()
        }
    }

    #[test]
    fn a_process_killed_before_any_of_its_calls_leaves_nothing() {
        for newest_first in [false, true] {
            let mut calls = 0;
            loop {
                let mut process = Mortal::new(calls);
                let finished = Machine::new(&mut process, 0).is_ok();
                process.bury(newest_first);
                let left = process.live();
                assert_eq!(left, Some(Live::default()), "killed after {calls} calls");
                if finished {
                    break;
                }
                calls += 1;
            }
            assert!(
                calls >= 40,
                "the whole bring-up was cut short, not {calls} calls"
            );
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_and_a_refused_bring_up_are_errors() {
        let mut nodes = SimNodes::new(Config::default());
        let error = run(&mut nodes, 7).unwrap_err();
        assert_eq!(error.to_string(), "there is no GPU 7");
        let machine = Config::parse("fail=alloc:0x2080:1:0x1A").unwrap();
        let error = run(&mut SimNodes::new(machine), 0).unwrap_err();
        let message = "allocate subdevice failed with INSUFFICIENT_RESOURCES (0x1a)";
        assert_eq!(error.to_string(), message);
    }
}
