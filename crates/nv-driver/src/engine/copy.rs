//! The copy engine: linear copies of one or many lines, component remapping, semaphores.

use vrampager_nv_abi::ctrl::fault;
use vrampager_nv_abi::method::{copy, launch, remap, sem};

use super::{Run, mmu_fault, reduce};
use crate::Driver;
use crate::channel::{Busy, ChannelError, CopyAt, Exec, Registers};
use crate::store::Store;
use crate::vas::Access;

/// How destination components are made from source components and constants.
struct Remap {
    /// Bytes of a component.
    size: usize,
    sources: usize,
    /// One selector per destination component.
    selectors: Vec<u32>,
    constants: [u32; 2],
}

/// Engines take no more address bits than these.
const ADDRESS_MASK: u64 = (1 << 57) - 1;
/// No surface has more lines.
const LINES_MAX: u32 = 1 << 24;

/// Elements that are remapped at a time.
const BATCH: usize = 4096;

impl Remap {
    fn of(registers: &Registers) -> Self {
        let word = registers.get(copy::SET_REMAP_COMPONENTS);
        let field = |shift: u32| (word >> shift & 3) as usize + 1;
        let count = field(remap::DST_COMPONENTS_SHIFT);
        let selector = |index: u32| word >> (index * remap::SELECTOR_STRIDE) & 7;
        Self {
            size: field(remap::SIZE_SHIFT),
            sources: field(remap::SRC_COMPONENTS_SHIFT),
            selectors: (0..4).map(selector).take(count).collect(),
            constants: [
                registers.get(copy::SET_REMAP_CONST_A),
                registers.get(copy::SET_REMAP_CONST_B),
            ],
        }
    }

    fn is_valid(&self) -> bool {
        self.selectors.iter().all(|&selector| match selector {
            remap::CONST_A | remap::CONST_B | remap::NO_WRITE => true,
            source => (source as usize) < self.sources,
        })
    }

    fn reads_source(&self) -> bool {
        self.selectors
            .iter()
            .any(|&selector| selector < remap::CONST_A)
    }

    fn keeps_some(&self) -> bool {
        self.selectors.contains(&remap::NO_WRITE)
    }

    fn source_bytes(&self) -> usize {
        self.size * self.sources
    }

    fn destination_bytes(&self) -> usize {
        self.size * self.selectors.len()
    }

    /// Makes one destination element in place of what was there.
    fn apply(&self, source: &[u8], destination: &mut [u8]) {
        let components = destination.chunks_exact_mut(self.size);
        for (&selector, component) in self.selectors.iter().zip(components) {
            match selector {
                remap::NO_WRITE => {}
                remap::CONST_A | remap::CONST_B => {
                    let constant = self.constants[(selector - remap::CONST_A) as usize];
                    component.copy_from_slice(&constant.to_le_bytes()[..self.size]);
                }
                _ => {
                    let at = selector as usize * self.size;
                    component.copy_from_slice(&source[at..at + self.size]);
                }
            }
        }
    }
}

impl<S: Store> Driver<S> {
    pub(super) fn copy_method(
        &mut self,
        run: Run,
        exec: &mut Exec,
        method: u32,
        data: u32,
    ) -> Result<(), ChannelError> {
        exec.copy.set(method, data);
        if method != copy::LAUNCH_DMA {
            return Ok(());
        }
        if data & launch::TRANSFER_MASK == 0 {
            return self.copy_semaphore(run, &exec.copy, data);
        }
        exec.busy = Some(Busy::Copy(CopyAt::default()));
        Ok(())
    }

    /// Goes on with a launch: as many lines as the pass has left for it, and its semaphore after
    /// the last one. What is left of it.
    pub(super) fn copy_on(
        &mut self,
        run: Run,
        exec: &mut Exec,
        mut at: CopyAt,
    ) -> Result<Option<CopyAt>, ChannelError> {
        let flags = exec.copy.get(copy::LAUNCH_DMA);
        let lines = lines(&exec.copy, flags)?;
        let remap = (flags & launch::REMAP != 0).then(|| Remap::of(&exec.copy));
        if remap.as_ref().is_some_and(|how| !how.is_valid()) {
            return Err(ChannelError::Pushbuffer);
        }
        let length = u64::from(exec.copy.get(copy::LINE_LENGTH_IN));
        while at.line < lines {
            if !exec.budget.step() {
                return Ok(Some(at));
            }
            at.done += self.copy_line(run, exec, at, remap.as_ref())?;
            if at.done < length {
                return Ok(Some(at));
            }
            at = CopyAt {
                line: at.line + 1,
                done: 0,
            };
        }
        self.counted.copies += 1;
        self.copy_semaphore(run, &exec.copy, flags)?;
        Ok(None)
    }

    /// Copies what is left of a line, or of the pass; how much that was, in bytes or elements.
    fn copy_line(
        &mut self,
        run: Run,
        exec: &mut Exec,
        at: CopyAt,
        remap: Option<&Remap>,
    ) -> Result<u64, ChannelError> {
        let registers = &exec.copy;
        let (line, length) = (u64::from(at.line), registers.get(copy::LINE_LENGTH_IN));
        let source = registers.wide(copy::OFFSET_IN_UPPER, copy::OFFSET_IN_LOWER) & ADDRESS_MASK;
        let source = source + line * u64::from(registers.get(copy::PITCH_IN));
        let target = registers.wide(copy::OFFSET_OUT_UPPER, copy::OFFSET_OUT_LOWER) & ADDRESS_MASK;
        let target = target + line * u64::from(registers.get(copy::PITCH_OUT));
        // Bytes of an element at either side.
        let (read, written) = remap.map_or((1, 1), |how| {
            (how.source_bytes() as u64, how.destination_bytes() as u64)
        });
        let most = exec.budget.bytes / read.max(written);
        let take = (u64::from(length) - at.done).min(most);
        let (from, to) = (source + at.done * read, target + at.done * written);
        match remap {
            None => self.gpu_copy(run, from, to, take)?,
            Some(how) => {
                let elements = usize::try_from(take).expect("fewer than the bytes of a pass");
                self.gpu_remap(run, from, to, elements, how)?;
            }
        }
        exec.budget.bytes -= take * read.max(written);
        self.counted.copied_bytes += take * written;
        Ok(take)
    }

    /// Copies bytes, cut where either side goes from one mapping to the next.
    fn gpu_copy(&mut self, run: Run, from: u64, to: u64, len: u64) -> Result<(), ChannelError> {
        let mut done = 0;
        while done < len {
            let (source, source_left) = self.translate(run, from + done, Access::ReadOnly)?;
            let (target, target_left) = self.translate(run, to + done, Access::ReadWrite)?;
            let take = source_left.min(target_left).min(len - done);
            self.store
                .copy(source, target, take)
                .map_err(|_| mmu_fault(to + done, Access::ReadWrite, fault::PTE))?;
            done += take;
        }
        Ok(())
    }

    fn gpu_remap(
        &mut self,
        run: Run,
        from: u64,
        to: u64,
        elements: usize,
        how: &Remap,
    ) -> Result<(), ChannelError> {
        let (source_size, target_size) = (how.source_bytes(), how.destination_bytes());
        let constant = !how.reads_source() && !how.keeps_some();
        let mut source = vec![0; BATCH.min(elements) * source_size];
        let mut target = vec![0; BATCH.min(elements) * target_size];
        let mut done = 0;
        while done < elements {
            let batch = BATCH.min(elements - done);
            let source = &mut source[..batch * source_size];
            let target = &mut target[..batch * target_size];
            let at = to + (done * target_size) as u64;
            if how.reads_source() {
                self.gpu_read(run, from + (done * source_size) as u64, source)?;
            }
            if how.keeps_some() {
                self.gpu_read(run, at, target)?;
            }
            // Batches of a constant are all alike.
            if !constant || done == 0 {
                let targets = target.chunks_exact_mut(target_size);
                for (source, target) in source.chunks_exact(source_size).zip(targets) {
                    how.apply(source, target);
                }
            }
            self.gpu_write(run, at, target)?;
            done += batch;
        }
        Ok(())
    }

    fn copy_semaphore(
        &mut self,
        run: Run,
        registers: &Registers,
        flags: u32,
    ) -> Result<(), ChannelError> {
        let address = registers.wide(copy::SET_SEMAPHORE_A, copy::SET_SEMAPHORE_B) & ADDRESS_MASK;
        let payload = registers.get(copy::SET_SEMAPHORE_PAYLOAD);
        match flags >> launch::SEMAPHORE_SHIFT & 3 {
            0 => return Ok(()),
            launch::SEMAPHORE_FOUR_WORD => {
                let time = run.now.to_le_bytes();
                self.gpu_write(run, address + sem::TIMESTAMP_OFFSET, &time)?;
            }
            _ => {}
        }
        if flags & launch::SEMAPHORE_REDUCTION == 0 {
            // A client may look at 64 bits of which a four-word release clears the upper half.
            let wide = flags >> launch::SEMAPHORE_SHIFT & 3 == launch::SEMAPHORE_FOUR_WORD;
            return self.gpu_store(run, address, payload.into(), wide);
        }
        /// Bits 17:14 and 18 of the launch: how to combine, and whether unsigned.
        const REDUCTION_SHIFT: u32 = 14;
        const UNSIGNED: u32 = 1 << 18;
        let old = self.gpu_load(run, address, false)?;
        let signed = (flags & UNSIGNED == 0).then_some(32);
        let new = reduce(flags >> REDUCTION_SHIFT & 0xF, old, payload.into(), signed);
        self.gpu_store(run, address, new.ok_or(ChannelError::Pushbuffer)?, false)
    }
}

/// Lines of a launch, if it is one that is simulated: physical addresses and tiled layouts are not.
fn lines(registers: &Registers, flags: u32) -> Result<u32, ChannelError> {
    let linear = launch::SRC_PITCH | launch::DST_PITCH;
    let physical = launch::SRC_PHYSICAL | launch::DST_PHYSICAL;
    let lines = match flags & launch::MULTI_LINE {
        0 => 1,
        _ => registers.get(copy::LINE_COUNT),
    };
    if flags & linear != linear || flags & physical != 0 || lines > LINES_MAX {
        return Err(ChannelError::Pushbuffer);
    }
    Ok(lines)
}
