//! Who runs, and who has to ring first.

use vrampager_nv_abi::{Node, class, method, method::sem};
use vrampager_nv_driver::{Place, Progress};

use super::channels::{DATA, MIB, VA, semaphore, submit};
use super::client::{Client, Gpu, Queue};

/// A second queue, and where semaphores of both are.
const OTHER: u64 = VA + (16 << 20);

struct Rig {
    client: Client,
    bell: Place,
    queues: [(Queue, u64); 2],
    place: Place,
}

fn bell(client: &mut Client, gpu: Gpu) -> Place {
    let class = class::TURING_USERMODE_A;
    let window = client.alloc(gpu.subdevice, class, &mut ());
    let window = window.expect("a doorbell window");
    let node = Node::Gpu(gpu.minor);
    let shown = client.map_cpu(gpu, window, method::USERMODE_SIZE, node);
    shown.expect("a CPU mapping").0
}

impl Rig {
    /// Two queues with an entry each.
    fn new(machine: &str) -> Self {
        let mut client = Client::new(machine);
        let gpu = client.gpu(0);
        let bell = bell(&mut client, gpu);
        let queues = [VA, OTHER].map(|base| (client.queue(gpu, base), base));
        let (_, place) = client.buffer(gpu, DATA, MIB);
        let mut rig = Self {
            client,
            bell,
            queues,
            place,
        };
        rig.submit(0, 1);
        rig.submit(1, 1);
        rig
    }

    fn submit(&mut self, queue: usize, value: u64) {
        let words = semaphore(DATA + queue as u64 * 16, value, sem::RELEASE);
        let (queue, base) = &mut self.queues[queue];
        submit(&mut self.client, queue, *base, &words);
    }

    fn ring(&mut self, token: u32) {
        let bytes = token.to_le_bytes();
        self.client.write(self.bell, method::DOORBELL, &bytes);
    }

    /// What both queues have released by now.
    fn released(&mut self) -> [u32; 2] {
        self.client.driver().run_until_idle(0, 10);
        [0, 16].map(|at| u32::from_le_bytes(self.client.read(self.place, at)))
    }
}

#[test]
fn a_strict_machine_runs_no_channel_that_has_not_rung_or_rang_with_a_wrong_token() {
    let mut rig = Rig::new("doorbell=strict");
    assert_eq!(rig.released(), [0, 0], "nobody has rung");
    let [first, second] = rig.queues.map(|(queue, _)| queue.token);
    assert_eq!(first, 0, "the token that fresh memory would have");
    for wrong in [second + 1, 1 << 16 | first, u32::MAX] {
        rig.ring(wrong);
        assert_eq!(rig.released(), [0, 0], "{wrong:#x}");
    }
    rig.ring(second);
    assert_eq!(rig.released(), [0, 1], "the other one's token");
    rig.ring(first);
    assert_eq!(rig.released(), [1, 1]);
}

#[test]
fn a_channel_once_heard_runs_though_another_has_rung_since() {
    let mut rig = Rig::new("doorbell=strict");
    // Both ring before a pass; the front end has looked in between.
    for (queue, _) in rig.queues {
        rig.ring(queue.token);
        rig.client.driver().hear();
    }
    assert_eq!(rig.released(), [1, 1]);
    rig.submit(0, 2);
    assert_eq!(rig.released(), [2, 1]);
}

#[test]
fn a_token_rings_on_its_own_gpu_only() {
    let mut rig = Rig::new("doorbell=strict,gpus=2");
    let other = rig.client.gpu(1);
    let there = bell(&mut rig.client, other);
    let here = std::mem::replace(&mut rig.bell, there);
    rig.ring(rig.queues[0].0.token);
    assert_eq!(rig.released(), [0, 0]);
    rig.bell = here;
    rig.ring(rig.queues[0].0.token);
    assert_eq!(rig.released(), [1, 0]);
}

#[test]
fn a_machine_that_is_not_strict_needs_no_doorbell() {
    let mut rig = Rig::new("");
    assert_eq!(rig.released(), [1, 1]);
    assert_eq!(rig.client.driver().run(0), Progress::Idle);
}
