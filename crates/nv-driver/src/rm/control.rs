//! Controls: questions to objects, and a few commands.

use vrampager_nv_abi::escape::RmControl;
use vrampager_nv_abi::neutral::Schedule;
use vrampager_nv_abi::{Handle, Status, class, ctrl};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::alloc::{parse, runlist};
use super::{Kind, Object};
use crate::store::{Process, Store};
use crate::{Driver, FileId};

/// Lists that clients hand over are bounded: no list of this interface is longer.
const LIST_MAX: u32 = 4096;

/// What an answer needs to know of the object asked.
#[derive(Clone)]
struct Target {
    client: Handle,
    handle: Handle,
    kind: Option<Kind>,
}

impl<S: Store> Driver<S> {
    /// Carries out a control; parameters are written back only on success.
    pub(crate) fn rm_control(
        &mut self,
        process: &mut dyn Process,
        file: FileId,
        request: &RmControl,
    ) -> Result<(), Status> {
        // Category and index zero are the null command of every class.
        if request.cmd & 0xFFFF == 0 {
            return Ok(());
        }
        if (request.params == 0) != (request.params_size == 0) {
            return Err(Status::INVALID_ARGUMENT);
        }
        let client = self.client(file, request.client)?;
        let object = match request.object {
            handle if handle == request.client => None,
            handle => Some(client.object(handle)?),
        };
        let known = answers(request.cmd, object).then(|| self.control_size(request.cmd));
        let size = known.flatten().ok_or(Status::NOT_SUPPORTED)?;
        if request.params_size as usize != size {
            return Err(Status::INVALID_ARGUMENT);
        }
        let target = Target {
            client: request.client,
            handle: request.object,
            kind: object.map(|object| object.kind.clone()),
        };
        let mut params = vec![0; size];
        process
            .read(request.params, &mut params)
            .map_err(|_| Status::INVALID_ADDRESS)?;
        self.answer(process, target, request.cmd, &mut params)?;
        process
            .write(request.params, &params)
            .map_err(|_| Status::INVALID_ADDRESS)
    }

    /// Parameter bytes of a command.
    fn control_size(&self, cmd: u32) -> Option<usize> {
        Some(match cmd {
            ctrl::SYSTEM_GET_BUILD_VERSION_V2 => size_of::<ctrl::BuildVersion>(),
            ctrl::GPU_GET_ID_INFO_V2 => size_of::<ctrl::GpuIdInfo>(),
            ctrl::GPU_GET_CLASSLIST => size_of::<ctrl::ClassList>(),
            ctrl::GPU_GET_CLASSLIST_V2 => size_of::<ctrl::ClassListV2>(),
            ctrl::GPU_GET_GID_INFO => size_of::<ctrl::GidInfo>(),
            ctrl::GR_GET_INFO => size_of::<ctrl::GrGetInfo>(),
            ctrl::FB_GET_INFO_V2 => ctrl::fb_info_size(self.abi),
            ctrl::FB_FLUSH_GPU_CACHE => ctrl::FB_FLUSH_GPU_CACHE_SIZE,
            ctrl::PERF_BOOST => size_of::<ctrl::PerfBoost>(),
            ctrl::DEBUG_READ_ALL_SM_ERROR_STATES => size_of::<ctrl::SmErrorStates>(),
            ctrl::DEBUG_READ_MMU_FAULT_INFO => size_of::<ctrl::MmuFaultInfo>(),
            ctrl::GROUP_SCHEDULE => Schedule::size(self.abi),
            // The channel's command kept the two bytes that the group's has outgrown.
            ctrl::CHANNEL_SCHEDULE => size_of::<vrampager_nv_abi::v570::Schedule>(),
            ctrl::CHANNEL_BIND => size_of::<ctrl::ChannelBind>(),
            ctrl::GET_WORK_SUBMIT_TOKEN => size_of::<ctrl::WorkSubmitToken>(),
            _ => return None,
        })
    }

    fn answer(
        &mut self,
        process: &mut dyn Process,
        target: Target,
        cmd: u32,
        params: &mut [u8],
    ) -> Result<(), Status> {
        match cmd {
            ctrl::SYSTEM_GET_BUILD_VERSION_V2 => self.build_version(params),
            ctrl::GPU_GET_ID_INFO_V2 => self.gpu_id_info(params),
            ctrl::GPU_GET_CLASSLIST => self.class_list(process, params),
            ctrl::GPU_GET_CLASSLIST_V2 => {
                self.class_list_v2(params);
                Ok(())
            }
            ctrl::GPU_GET_GID_INFO => self.gid_info(&target, params),
            ctrl::GR_GET_INFO => self.gr_info(process, params),
            ctrl::FB_GET_INFO_V2 => self.fb_info(&target, params),
            ctrl::DEBUG_READ_ALL_SM_ERROR_STATES => self.sm_errors(&target, params),
            ctrl::DEBUG_READ_MMU_FAULT_INFO => self.mmu_faults(&target, params),
            ctrl::GROUP_SCHEDULE => self.schedule_group(&target, params),
            ctrl::CHANNEL_SCHEDULE => self.schedule_channel(&target, params),
            ctrl::CHANNEL_BIND => self.bind_channel(&target, params),
            ctrl::GET_WORK_SUBMIT_TOKEN => self.work_submit_token(&target, params),
            // Clocks and caches are not simulated: raising and flushing them changes nothing.
            _ => Ok(()),
        }
    }

    fn build_version(&self, params: &mut [u8]) -> Result<(), Status> {
        let mut answer = ctrl::BuildVersion::new_zeroed();
        put_text(&mut answer.driver_version, &self.config.release);
        put_text(&mut answer.version, &self.config.release);
        put_text(&mut answer.title, "vrampager simulated driver");
        params.copy_from_slice(answer.as_bytes());
        Ok(())
    }

    fn gpu_id_info(&self, params: &mut [u8]) -> Result<(), Status> {
        let mut answer: ctrl::GpuIdInfo = parse(params);
        let index = (0..self.gpus.len()).find(|&index| gpu_id(index) == answer.gpu_id);
        let index = u32::try_from(index.ok_or(Status::INVALID_ARGUMENT)?);
        let index = index.expect("at most 32 GPUs");
        answer.device_instance = index;
        answer.gpu_instance = index;
        answer.board_id = answer.gpu_id;
        answer.numa_id = -1;
        params.copy_from_slice(answer.as_bytes());
        Ok(())
    }

    fn all_classes(&self) -> Vec<u32> {
        let common = [
            class::NV01_MEMORY_SYSTEM,
            class::NV01_MEMORY_LOCAL_USER,
            class::NV01_MEMORY_VIRTUAL,
            class::NV01_MEMORY_SYSTEM_OS_DESCRIPTOR,
            class::FERMI_VASPACE_A,
            class::FERMI_CONTEXT_SHARE_A,
            class::KEPLER_CHANNEL_GROUP_A,
            class::GT200_DEBUGGER,
        ];
        common.into_iter().chain(self.classes()).collect()
    }

    fn class_list_v2(&self, params: &mut [u8]) {
        let mut answer = ctrl::ClassListV2::new_zeroed();
        for (slot, class) in answer.list.iter_mut().zip(self.all_classes()) {
            *slot = class;
            answer.count += 1;
        }
        params.copy_from_slice(answer.as_bytes());
    }

    fn class_list(&self, process: &mut dyn Process, params: &mut [u8]) -> Result<(), Status> {
        let mut answer: ctrl::ClassList = parse(params);
        let classes = self.all_classes();
        let count = u32::try_from(classes.len()).expect("a short list");
        if answer.count != 0 {
            if answer.count < count {
                return Err(Status::INVALID_ARGUMENT);
            }
            process
                .write(answer.list, classes.as_bytes())
                .map_err(|_| Status::INVALID_ADDRESS)?;
        }
        answer.count = count;
        params.copy_from_slice(answer.as_bytes());
        Ok(())
    }

    fn gid_info(&self, target: &Target, params: &mut [u8]) -> Result<(), Status> {
        let mut answer: ctrl::GidInfo = parse(params);
        let uuid = self.gpus[target.gpu()?].uuid;
        if answer.flags & ctrl::GID_FORMAT_BINARY == 0 {
            return Err(Status::INVALID_ARGUMENT);
        }
        answer.length = 16;
        answer.data[..16].copy_from_slice(&uuid);
        params.copy_from_slice(answer.as_bytes());
        Ok(())
    }

    fn gr_info(&self, process: &mut dyn Process, params: &mut [u8]) -> Result<(), Status> {
        let request: ctrl::GrGetInfo = parse(params);
        if request.count > LIST_MAX {
            return Err(Status::INVALID_ARGUMENT);
        }
        let mut entries = vec![0; request.count as usize * size_of::<ctrl::GrInfo>()];
        process
            .read(request.list, &mut entries)
            .map_err(|_| Status::INVALID_ADDRESS)?;
        for bytes in entries.chunks_exact_mut(size_of::<ctrl::GrInfo>()) {
            let mut entry: ctrl::GrInfo = parse(bytes);
            entry.data = self.gr_value(entry.index);
            bytes.copy_from_slice(entry.as_bytes());
        }
        process
            .write(request.list, &entries)
            .map_err(|_| Status::INVALID_ADDRESS)
    }

    /// The shape of a mid-sized GPU of each generation.
    fn gr_value(&self, index: u32) -> u32 {
        use crate::config::Arch;
        match index {
            ctrl::gr::SM_VERSION => match self.config.arch {
                Arch::Ampere => 0x806,
                Arch::Ada => 0x809,
                Arch::Blackwell => 0xA04,
            },
            ctrl::gr::MAX_WARPS_PER_SM => 48,
            ctrl::gr::NUM_GPCS => 4,
            ctrl::gr::NUM_TPC_PER_GPC => 4,
            ctrl::gr::NUM_SM_PER_TPC => 2,
            _ => 0,
        }
    }

    fn fb_info(&self, target: &Target, params: &mut [u8]) -> Result<(), Status> {
        let gpu = &self.gpus[target.gpu()?];
        let (count, entries) = u32::read_from_prefix(params).expect("starts with a count");
        let limit = entries.len() / size_of::<ctrl::GrInfo>();
        let count = usize::try_from(count).map_err(|_| Status::INVALID_ARGUMENT)?;
        if count > limit {
            return Err(Status::INVALID_ARGUMENT);
        }
        let entries = &mut params[size_of::<u32>()..];
        for bytes in entries
            .chunks_exact_mut(size_of::<ctrl::GrInfo>())
            .take(count)
        {
            let mut entry: ctrl::GrInfo = parse(bytes);
            let value = match entry.index {
                ctrl::fb::BAR1_SIZE => self.config.bar1,
                ctrl::fb::RAM_SIZE | ctrl::fb::HEAP_SIZE => self.config.vram,
                ctrl::fb::HEAP_FREE => self.config.vram - gpu.vram_used,
                _ => 0,
            };
            entry.data = u32::try_from(value >> 10).unwrap_or(u32::MAX);
            bytes.copy_from_slice(entry.as_bytes());
        }
        Ok(())
    }

    fn sm_errors(&self, target: &Target, params: &mut [u8]) -> Result<(), Status> {
        let mut answer: ctrl::SmErrorStates = parse(params);
        answer.states = [[0; 6]; 100];
        answer.mmu_fault_valid = u8::from(!self.debugged_faults(target)?.is_empty());
        params.copy_from_slice(answer.as_bytes());
        Ok(())
    }

    fn mmu_faults(&self, target: &Target, params: &mut [u8]) -> Result<(), Status> {
        let mut answer = ctrl::MmuFaultInfo::new_zeroed();
        for (slot, fault) in answer.list.iter_mut().zip(self.debugged_faults(target)?) {
            *slot = fault;
            answer.count += 1;
        }
        params.copy_from_slice(answer.as_bytes());
        Ok(())
    }

    /// Memory faults of the group whose channel a debugger looks at; none once that is freed.
    fn debugged_faults(&self, target: &Target) -> Result<Vec<ctrl::MmuFault>, Status> {
        let Some(Kind::Debugger(id)) = target.kind else {
            return Err(Status::INVALID_OBJECT);
        };
        Ok(self.group_faults(id))
    }

    fn schedule_group(&mut self, target: &Target, params: &[u8]) -> Result<(), Status> {
        let schedule = Schedule::decode(self.abi, params).expect("sized by its command");
        let object = self
            .client_mut(target.client)
            .objects
            .get_mut(&target.handle);
        let Some(Object {
            kind: Kind::Group { scheduled, .. },
            ..
        }) = object
        else {
            return Err(Status::INVALID_OBJECT);
        };
        *scheduled = schedule.enable != 0;
        Ok(())
    }

    fn schedule_channel(&mut self, target: &Target, params: &[u8]) -> Result<(), Status> {
        let schedule: vrampager_nv_abi::v570::Schedule = parse(params);
        let channel = self.channel_of(target)?;
        if channel.runlist.is_none() {
            return Err(Status::INVALID_STATE);
        }
        channel.scheduled = schedule.enable != 0;
        Ok(())
    }

    fn bind_channel(&mut self, target: &Target, params: &[u8]) -> Result<(), Status> {
        let bind: ctrl::ChannelBind = parse(params);
        let runlist = runlist(bind.engine_type).ok_or(Status::INVALID_ARGUMENT)?;
        self.channel_of(target)?.runlist = Some(runlist);
        Ok(())
    }

    fn work_submit_token(&mut self, target: &Target, params: &mut [u8]) -> Result<(), Status> {
        let token = self
            .channel_of(target)?
            .token()
            .ok_or(Status::INVALID_STATE)?;
        params.copy_from_slice(ctrl::WorkSubmitToken { token }.as_bytes());
        Ok(())
    }

    fn channel_of(&mut self, target: &Target) -> Result<&mut crate::channel::Channel, Status> {
        let Some(Kind::Channel(id)) = target.kind else {
            return Err(Status::INVALID_OBJECT);
        };
        Ok(self.channels.get_mut(&id).expect("its object holds it"))
    }
}

impl Target {
    fn gpu(&self) -> Result<usize, Status> {
        match self.kind {
            Some(Kind::Device { gpu, .. } | Kind::Subdevice { gpu }) => Ok(gpu),
            _ => Err(Status::INVALID_OBJECT),
        }
    }
}

/// Whether the class in a command's upper half is the object's; `None` is the client itself.
fn answers(cmd: u32, object: Option<&Object>) -> bool {
    let class = cmd >> 16;
    match object {
        None => class == class::NV01_ROOT,
        // Channels of every generation answer the commands of the generations before.
        Some(object) if class::is_channel(object.class) => matches!(class, 0xA06F | 0xC36F),
        Some(object) => class == object.class,
    }
}

/// The resource manager's identifier of a GPU: its bus number, in the second byte.
pub(crate) fn gpu_id(index: usize) -> u32 {
    u32::from(bus(index)) << 8
}

/// PCI bus of a GPU: each has one of its own, from 1.
pub(crate) fn bus(index: usize) -> u8 {
    u8::try_from(index + 1).expect("at most 32 GPUs")
}

/// Fills a zero-terminated text field; a longer text is cut.
fn put_text(field: &mut [u8], text: &str) {
    let len = text.len().min(field.len() - 1);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
}
