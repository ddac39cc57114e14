//! Running channels: rings, pushbuffers, host methods, semaphores, launches.

mod copy;
mod doorbell;

use vrampager_nv_abi::class;
use vrampager_nv_abi::ctrl::{MmuFault, fault};
use vrampager_nv_abi::method::{
    GP_ENTRY_BYTES, GpEntry, Header, compute, host, reduction, sem, userd,
};
use vrampager_nv_abi::qmd::QmdVersion;

use crate::Driver;
use crate::channel::{Acquire, Budget, Burst, Busy, Chain, ChannelError, ChannelId, Exec};
use crate::config::Arch;
use crate::store::{Place, Store};
use crate::vas::{Access, VasId};

/// What a pass over the channels found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Some channel moved on.
    Moved,
    /// None moved, and some wait for a semaphore.
    Waiting,
    /// There is nothing to do.
    Idle,
}

/// The channel that runs, and when.
#[derive(Clone, Copy)]
struct Run {
    vas: VasId,
    now: u64,
}

/// Where a channel is when it stops to run words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// At the end of what it was to do.
    Over,
    /// At a semaphore that is not there yet.
    Waits,
    /// Where the pass ends for it.
    Spent,
}

/// Launch descriptors that one launch may chain: a longer chain is a loop.
const CHAIN_MAX: usize = 1 << 16;

/// An access that stops the channel.
fn mmu_fault(address: u64, access: Access, kind: u32) -> ChannelError {
    let access_type = match access {
        Access::ReadOnly => fault::ACCESS_READ,
        Access::ReadWrite => fault::ACCESS_WRITE,
    };
    ChannelError::Mmu(MmuFault {
        address,
        fault_type: kind,
        access_type,
    })
}

impl<S: Store> Driver<S> {
    /// Lets every channel run once: to the end of one ring entry, to a semaphore that is not there
    /// yet, or for 16 MiB of copies and 16384 words, lines and launches, whichever comes first.
    /// `now` is the time in nanoseconds that timestamps get.
    ///
    /// A copy that goes on in later passes is as one through a buffer only within the part that
    /// a pass copies.
    pub fn run(&mut self, now: u64) -> Progress {
        self.hear();
        let ids: Vec<ChannelId> = self.channels.keys().copied().collect();
        let mut progress = Progress::Idle;
        for id in ids {
            match self.run_channel(id, now) {
                Progress::Moved => progress = Progress::Moved,
                Progress::Waiting if progress == Progress::Idle => progress = Progress::Waiting,
                Progress::Waiting | Progress::Idle => {}
            }
        }
        progress
    }

    /// Runs until nothing moves, at most `passes` times.
    pub fn run_until_idle(&mut self, now: u64, passes: usize) -> Progress {
        for _ in 0..passes {
            match self.run(now) {
                Progress::Moved => {}
                end @ (Progress::Waiting | Progress::Idle) => return end,
            }
        }
        Progress::Moved
    }

    fn run_channel(&mut self, id: ChannelId, now: u64) -> Progress {
        let channel = &self.channels[&id];
        if !self.is_runnable(channel) {
            return Progress::Idle;
        }
        let run = Run {
            vas: channel.vas,
            now,
        };
        let channel = self.channels.get_mut(&id).expect("looked up above");
        let mut exec = std::mem::take(&mut channel.exec);
        let result = self.advance(id, run, &mut exec);
        let channel = self
            .channels
            .get_mut(&id)
            .expect("running frees no channel");
        channel.exec = exec;
        result.unwrap_or_else(|error| {
            self.stop_channel(id, error, now);
            Progress::Moved
        })
    }

    fn advance(
        &mut self,
        id: ChannelId,
        run: Run,
        exec: &mut Exec,
    ) -> Result<Progress, ChannelError> {
        let mut progress = Progress::Idle;
        exec.budget = Budget::PASS;
        if exec.busy.is_some() {
            progress = match self.settle(run, exec)? {
                Turn::Waits => return Ok(Progress::Waiting),
                Turn::Spent => return Ok(Progress::Moved),
                Turn::Over => Progress::Moved,
            };
        } else if exec.next == exec.words.len() && !self.fetch(id, run, exec)? {
            return Ok(progress);
        }
        if run.now < exec.begins {
            return Ok(Progress::Waiting);
        }
        let first = exec.next;
        Ok(match self.run_words(run, exec)? {
            Turn::Over => {
                exec.words.clear();
                exec.next = 0;
                self.store_get(id, exec.get)?;
                Progress::Moved
            }
            Turn::Spent => Progress::Moved,
            Turn::Waits if exec.next > first => Progress::Moved,
            Turn::Waits => progress,
        })
    }

    /// Reads the next ring entry's segment; false if the ring is empty.
    fn fetch(&mut self, id: ChannelId, run: Run, exec: &mut Exec) -> Result<bool, ChannelError> {
        let channel = &self.channels[&id];
        let (ring, entries) = (channel.ring, channel.entries);
        let put = self.userd_word(id, userd::GP_PUT)? % entries;
        if put == exec.get {
            return Ok(false);
        }
        let vas = &self.vas[&run.vas];
        if vas.external && self.channels[&id].uvm.is_none() {
            // The engine's own buffers are mapped by registering the channel.
            return Err(mmu_fault(ring, Access::ReadOnly, fault::PTE));
        }
        let mut bits = [0; 8];
        self.gpu_read(run, ring + u64::from(exec.get) * GP_ENTRY_BYTES, &mut bits)?;
        exec.get = (exec.get + 1) % entries;
        let entry = GpEntry::decode(u64::from_le_bytes(bits));
        let mut bytes = vec![0; entry.words as usize * 4];
        self.gpu_read(run, entry.address, &mut bytes)?;
        exec.next = 0;
        exec.begins = run.now.saturating_add(self.config.latency_ns);
        exec.words = bytes
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
            .collect();
        self.counted.entries += 1;
        if exec.words.is_empty() {
            self.store_get(id, exec.get)?;
        }
        Ok(true)
    }

    fn userd_place(&self, id: ChannelId, offset: u64) -> Place {
        let (mem, base) = self.channels[&id].userd;
        Place {
            id: self.mem(mem).store,
            offset: base + offset,
        }
    }

    fn userd_word(&self, id: ChannelId, offset: u64) -> Result<u32, ChannelError> {
        let mut word = [0; 4];
        let place = self.userd_place(id, offset);
        self.store
            .read(place, &mut word)
            .map_err(|_| ChannelError::Pushbuffer)?;
        Ok(u32::from_le_bytes(word))
    }

    fn store_get(&mut self, id: ChannelId, get: u32) -> Result<(), ChannelError> {
        let place = self.userd_place(id, userd::GP_GET);
        let written = self.store.write(place, &get.to_le_bytes());
        written.map_err(|_| ChannelError::Pushbuffer)
    }

    /// Runs words of the segment.
    fn run_words(&mut self, run: Run, exec: &mut Exec) -> Result<Turn, ChannelError> {
        while let Some(&word) = exec.words.get(exec.next) {
            if !exec.budget.step() {
                return Ok(Turn::Spent);
            }
            exec.next += 1;
            if let Some(burst) = exec.burst.as_mut().filter(|burst| !burst.is_over()) {
                let subchannel = burst.subchannel;
                let method = burst.take().expect("it is not over");
                self.method(run, exec, subchannel, method, word)?;
            } else if let Header::Immediate(methods) = Header::decode(word) {
                self.method(run, exec, methods.subchannel, methods.method, methods.count)?;
            } else if !self.begin(exec, word)? {
                return Ok(Turn::Over);
            }
            let turn = self.settle(run, exec)?;
            if turn != Turn::Over {
                return Ok(turn);
            }
        }
        Ok(Turn::Over)
    }

    /// Does what must be over before the next word, as far as it goes now.
    fn settle(&mut self, run: Run, exec: &mut Exec) -> Result<Turn, ChannelError> {
        let left = match exec.busy {
            None => None,
            Some(Busy::Acquire(acquire)) => {
                if !self.acquired(run, acquire)? {
                    return Ok(Turn::Waits);
                }
                None
            }
            Some(Busy::Copy(at)) => self.copy_on(run, exec, at)?.map(Busy::Copy),
            Some(Busy::Launch(chain)) => self.launch(run, exec, chain)?.map(Busy::Launch),
        };
        exec.busy = left;
        Ok(match left {
            None => Turn::Over,
            Some(_) => Turn::Spent,
        })
    }

    /// Takes a header; false if it ends the segment.
    fn begin(&self, exec: &mut Exec, word: u32) -> Result<bool, ChannelError> {
        let header = Header::decode(word);
        match header {
            Header::Unknown => Err(ChannelError::Pushbuffer),
            Header::EndSegment => {
                exec.next = exec.words.len();
                Ok(false)
            }
            Header::Nop
            | Header::Immediate(_)
            | Header::Increasing(_)
            | Header::OneIncreasing(_)
            | Header::NonIncreasing(_) => {
                exec.burst = Burst::begin(header);
                Ok(true)
            }
        }
    }

    fn method(
        &mut self,
        run: Run,
        exec: &mut Exec,
        subchannel: u32,
        method: u32,
        data: u32,
    ) -> Result<(), ChannelError> {
        if method < host::LIMIT {
            return self.host_method(run, exec, subchannel, method, data);
        }
        let bound = exec.bound[subchannel as usize];
        if class::is_copy(bound) {
            return self.copy_method(run, exec, method, data);
        }
        if class::is_compute(bound) {
            exec.compute.set(method, data);
            if method == compute::SEND_SIGNALING_PCAS2_B {
                exec.busy = Some(Busy::Launch(Chain {
                    next: u64::from(exec.compute.get(compute::SEND_PCAS_A)) << 8,
                    before: 0,
                }));
            }
            return Ok(());
        }
        Err(ChannelError::Pushbuffer)
    }

    fn host_method(
        &mut self,
        run: Run,
        exec: &mut Exec,
        subchannel: u32,
        method: u32,
        data: u32,
    ) -> Result<(), ChannelError> {
        /// Methods without an effect here: caches, interrupts and time slices are not simulated.
        const WITHOUT_EFFECT: [u32; 4] = [host::NON_STALL_INTERRUPT, host::WFI, host::YIELD, 0x8];
        match method {
            host::SET_OBJECT => {
                let class = data & 0xFFFF;
                if !self.classes().contains(&class) {
                    return Err(ChannelError::Pushbuffer);
                }
                exec.bound[subchannel as usize] = class;
            }
            host::SEM_ADDR_LO..=host::SEM_PAYLOAD_HI => exec.host.set(method, data),
            host::SEM_EXECUTE => return self.semaphore(run, exec, data),
            host::MEM_OP_A..=host::MEM_OP_D => {}
            _ if WITHOUT_EFFECT.contains(&method) => {}
            _ => return Err(ChannelError::Pushbuffer),
        }
        Ok(())
    }

    fn semaphore(&mut self, run: Run, exec: &mut Exec, execute: u32) -> Result<(), ChannelError> {
        let address = exec.host.wide(host::SEM_ADDR_HI, host::SEM_ADDR_LO) & ((1 << 40) - 1);
        let payload = exec.host.wide(host::SEM_PAYLOAD_HI, host::SEM_PAYLOAD_LO);
        let wide = execute & sem::PAYLOAD_64BIT != 0;
        match execute & sem::OPERATION_MASK {
            sem::RELEASE => {
                if execute & sem::RELEASE_TIMESTAMP != 0 {
                    let time = run.now.to_le_bytes();
                    self.gpu_write(run, address + sem::TIMESTAMP_OFFSET, &time)?;
                }
                self.gpu_store(run, address, payload, wide)
            }
            sem::REDUCTION => {
                let old = self.gpu_load(run, address, wide)?;
                let how = execute >> sem::REDUCTION_SHIFT & 0xF;
                let signed = execute & sem::REDUCTION_UNSIGNED == 0;
                let payload = if wide {
                    payload
                } else {
                    payload & u64::from(u32::MAX)
                };
                let new = reduce(
                    how,
                    old,
                    payload,
                    signed.then_some(if wide { 64 } else { 32 }),
                );
                self.gpu_store(run, address, new.ok_or(ChannelError::Pushbuffer)?, wide)
            }
            7 => Err(ChannelError::Pushbuffer),
            _ => {
                exec.busy = Some(Busy::Acquire(Acquire {
                    address,
                    payload,
                    execute,
                }));
                Ok(())
            }
        }
    }

    fn acquired(&self, run: Run, acquire: Acquire) -> Result<bool, ChannelError> {
        let wide = acquire.execute & sem::PAYLOAD_64BIT != 0;
        let value = self.gpu_load(run, acquire.address, wide)?;
        let mask = if wide { u64::MAX } else { u32::MAX.into() };
        let payload = acquire.payload & mask;
        let sign = mask / 2 + 1;
        Ok(match acquire.execute & sem::OPERATION_MASK {
            sem::ACQUIRE => value == payload,
            sem::ACQ_STRICT_GEQ => value >= payload,
            sem::ACQ_CIRC_GEQ => value.wrapping_sub(payload) & sign == 0,
            sem::ACQ_AND => value & payload != 0,
            _ => !(value | payload) & mask != 0,
        })
    }

    /// Completes launch descriptors, each after the one it depends on; what the pass leaves of the
    /// chain. What they would compute is not simulated: only what orders work is.
    fn launch(
        &mut self,
        run: Run,
        exec: &mut Exec,
        mut chain: Chain,
    ) -> Result<Option<Chain>, ChannelError> {
        let version = match self.config.arch {
            Arch::Ampere | Arch::Ada => QmdVersion::V3,
            Arch::Blackwell => QmdVersion::V5,
        };
        while chain.before < CHAIN_MAX {
            if !exec.budget.step() {
                return Ok(Some(chain));
            }
            let mut bytes = vec![0; version.size()];
            self.gpu_read(run, chain.next, &mut bytes)?;
            for release in version.releases(&bytes) {
                let time = run.now.to_le_bytes();
                self.gpu_write(run, release.address + sem::TIMESTAMP_OFFSET, &time)?;
                self.gpu_write(run, release.address, &release.payload.to_le_bytes())?;
            }
            self.counted.launches += 1;
            let Some(next) = version.dependent(&bytes) else {
                return Ok(None);
            };
            chain = Chain {
                next,
                before: chain.before + 1,
            };
        }
        Err(ChannelError::Pushbuffer)
    }

    /// The memory behind a GPU address: where, and how many bytes of it follow.
    fn translate(
        &self,
        run: Run,
        address: u64,
        access: Access,
    ) -> Result<(Place, u64), ChannelError> {
        let table = &self.vas[&run.vas].table;
        let (start, entry) = table
            .find(address)
            .ok_or_else(|| mmu_fault(address, access, fault::PTE))?;
        if access == Access::ReadWrite && entry.access == Access::ReadOnly {
            return Err(mmu_fault(address, access, fault::RO_VIOLATION));
        }
        let mem = self.mem(entry.mem);
        let skip = address - start;
        let offset = entry.offset + skip;
        // The last page of a mapping may reach beyond the memory, as the last page of a file does.
        let left = (entry.len - skip).min(mem.size.saturating_sub(offset));
        if left == 0 {
            return Err(mmu_fault(address, access, fault::PTE));
        }
        Ok((
            Place {
                id: mem.store,
                offset,
            },
            left,
        ))
    }

    fn gpu_read(&self, run: Run, address: u64, into: &mut [u8]) -> Result<(), ChannelError> {
        let mut done = 0;
        while done < into.len() {
            let at = address + done as u64;
            let (place, left) = self.translate(run, at, Access::ReadOnly)?;
            let take = usize::try_from(left)
                .unwrap_or(usize::MAX)
                .min(into.len() - done);
            self.store
                .read(place, &mut into[done..done + take])
                .map_err(|_| mmu_fault(at, Access::ReadOnly, fault::PTE))?;
            done += take;
        }
        Ok(())
    }

    fn gpu_write(&mut self, run: Run, address: u64, from: &[u8]) -> Result<(), ChannelError> {
        let mut done = 0;
        while done < from.len() {
            let at = address + done as u64;
            let (place, left) = self.translate(run, at, Access::ReadWrite)?;
            let take = usize::try_from(left)
                .unwrap_or(usize::MAX)
                .min(from.len() - done);
            self.store
                .write(place, &from[done..done + take])
                .map_err(|_| mmu_fault(at, Access::ReadWrite, fault::PTE))?;
            done += take;
        }
        Ok(())
    }

    /// A semaphore's value, of 64 or 32 bits.
    fn gpu_load(&self, run: Run, address: u64, wide: bool) -> Result<u64, ChannelError> {
        let mut bytes = [0; 8];
        let len = if wide { 8 } else { 4 };
        self.gpu_read(run, address, &mut bytes[..len])?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn gpu_store(
        &mut self,
        run: Run,
        address: u64,
        value: u64,
        wide: bool,
    ) -> Result<(), ChannelError> {
        let len = if wide { 8 } else { 4 };
        self.gpu_write(run, address, &value.to_le_bytes()[..len])
    }
}

/// Combines a payload into memory; `signed` gives the width if the values are signed.
fn reduce(how: u32, old: u64, payload: u64, signed: Option<u32>) -> Option<u64> {
    // Signed numbers compare like unsigned ones with the sign bit turned over.
    let key = |value: u64| signed.map_or(value, |bits| value ^ 1 << (bits - 1));
    Some(match how {
        reduction::MIN => {
            if key(payload) < key(old) {
                payload
            } else {
                old
            }
        }
        reduction::MAX => {
            if key(payload) > key(old) {
                payload
            } else {
                old
            }
        }
        reduction::XOR => old ^ payload,
        reduction::AND => old & payload,
        reduction::OR => old | payload,
        reduction::ADD => old.wrapping_add(payload),
        reduction::INC => {
            if old >= payload {
                0
            } else {
                old + 1
            }
        }
        reduction::DEC => {
            if old == 0 || old > payload {
                payload
            } else {
                old - 1
            }
        }
        _ => return None,
    })
}
