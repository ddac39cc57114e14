//! The main job: requests for models, served by a device that holds only some of them.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use vrampager::{ErrorKind, Pager};
use vrampager_models::{ModelFile, Request, TraceRequests, ZipfRequests};

use crate::args::SwapArgs;
use crate::exit::{Exit, Failure};
use crate::memcpy::Copies;
use crate::model::Model;
use crate::progress::Progress;
use crate::report::{Bytes, Config, Leaks, ModelReport, Report};
use crate::verify::Tally;
use crate::window::Window;

/// Popularity of models: the second is asked for half as often as the first.
const ZIPF_EXPONENT: f64 = 1.0;

/// Serves all requests and closes the device.
///
/// # Errors
/// [`Failure`] for arguments that cannot be used, a request that cannot be served, and a file that
/// has changed. Bytes that differ are no error but part of the report.
pub(crate) fn run(args: &SwapArgs) -> Result<Report, Failure> {
    let fds = open_fds()?;
    let files = open_models(&args.files)?;
    let requests = Requests::new(args, files.len())?;
    let pager = open_pager(args)?;
    let mut report = serve(args, &pager, files, requests)?;
    pager.check();
    let left = pager.close()?;
    report.leaks = Leaks::new(left, open_fds()?.saturating_sub(fds));
    Ok(report)
}

/// Counts the descriptors of the process, among them the one that this takes.
fn open_fds() -> Result<u64, Failure> {
    let entries = fs::read_dir("/proc/self/fd").context("counting open files");
    let entries = entries.map_err(|error| Failure::new(Exit::Failed, error))?;
    Ok(entries.count() as u64)
}

fn open_models(paths: &[PathBuf]) -> Result<Vec<ModelFile>, Failure> {
    let mut files: Vec<ModelFile> = Vec::new();
    for path in paths {
        let file = ModelFile::open(path).map_err(Failure::usage)?;
        let stamp = |file: &ModelFile| (file.stamp().device, file.stamp().inode);
        if let Some(same) = files.iter().find(|other| stamp(other) == stamp(&file)) {
            let (one, other) = (same.path().display(), path.display());
            let message = format!("{one} and {other} are the same file");
            return Err(Failure::because(Exit::Usage, message));
        }
        if file.tensor_bytes() == 0 {
            let message = format!("{}: there are no bytes in its tensors", path.display());
            return Err(Failure::because(Exit::Usage, message));
        }
        files.push(file);
    }
    Ok(files)
}

/// The requests of the run, and how many there are.
struct Requests {
    count: u64,
    source: Box<dyn Iterator<Item = Request>>,
}

impl Requests {
    /// Traces are read to the end, so that a bad row is known before work begins.
    fn new(args: &SwapArgs, models: usize) -> Result<Self, Failure> {
        let at_most = usize::try_from(args.requests).unwrap_or(usize::MAX);
        if args.trace.is_empty() {
            let source = ZipfRequests::new(models, ZIPF_EXPONENT, args.seed);
            return Ok(Self {
                count: args.requests,
                source: Box::new(source.map_err(Failure::usage)?.take(at_most)),
            });
        }
        let rows = TraceRequests::open(&args.trace, models, args.speed.unwrap_or(1.0));
        let rows = rows.and_then(|rows| rows.take(at_most).collect::<Result<Vec<_>, _>>());
        let rows = rows.map_err(Failure::usage)?;
        if rows.is_empty() {
            let message = "the traces hold no requests".to_owned();
            return Err(Failure::because(Exit::Usage, message));
        }
        Ok(Self {
            count: rows.len() as u64,
            source: Box::new(rows.into_iter()),
        })
    }
}

fn swap_dir(args: &SwapArgs) -> PathBuf {
    args.swap_dir.clone().unwrap_or_else(std::env::temp_dir)
}

fn open_pager(args: &SwapArgs) -> Result<Pager, Failure> {
    let dir = swap_dir(args);
    if args.swap > 0 && !dir.is_dir() {
        let message = format!("{}: no such folder for the swap file", dir.display());
        return Err(Failure::because(Exit::Usage, message));
    }
    let mut builder = Pager::builder(&args.device.device)?;
    if let Some(bytes) = args.vram {
        builder = builder.vram(bytes);
    }
    Ok(builder.host(args.host).swap(dir, args.swap).open()?)
}

fn serve(
    args: &SwapArgs,
    pager: &Pager,
    files: Vec<ModelFile>,
    requests: Requests,
) -> Result<Report, Failure> {
    let models = files.into_iter().zip(0..);
    let models = models.map(|(file, index)| Model::new(pager, file, args, index));
    let mut models: Vec<Model> = models.collect::<Result<_, _>>()?;
    let mut job = Job {
        pager,
        window: Window::new(pager, args.host)?,
        tally: Tally::default(),
        expected: Vec::new(),
        copies: Copies::new(pager, requests.count),
    };
    let start = Instant::now();
    let mut progress = Progress::new(requests.count);
    for (number, request) in (0..).zip(requests.source) {
        let model = &mut models[request.model];
        progress.show(number, &model.name);
        if args.speed.is_some() {
            let due = Duration::from_nanos(request.at_ns);
            thread::sleep(due.saturating_sub(start.elapsed()));
        }
        job.request(model)?;
    }
    // What the last request of each model has written.
    for model in &models {
        job.compare(model, model.state_range())?;
    }
    drop(progress);
    let (copy_ratio, copy_speed) = job.copies.report();
    let models: Vec<ModelReport> = models.iter_mut().map(Model::report).collect();
    Ok(Report {
        version: env!("CARGO_PKG_VERSION"),
        config: config(args),
        verified: job.tally.mismatches == 0,
        mismatches: job.tally.mismatches,
        first_mismatch: job.tally.first,
        verified_bytes: job.tally.bytes,
        requests: requests.count,
        hits: models.iter().map(|model| model.hits).sum(),
        models,
        bytes: Bytes::from(pager.stats().manager.totals),
        copy_ratio,
        copy_speed,
        seconds: start.elapsed().as_secs_f64(),
        leaks: Leaks::default(),
    })
}

/// What a request needs besides its model.
struct Job<'a> {
    pager: &'a Pager,
    window: Window,
    tally: Tally,
    /// Reused for each comparison.
    expected: Vec<u8>,
    copies: Copies,
}

impl Job<'_> {
    /// Serves one request.
    fn request(&mut self, model: &mut Model) -> Result<(), Failure> {
        let before = self.pager.stats();
        model.unchanged()?;
        let hit = model.is_resident();
        let earlier = std::mem::take(&mut self.tally);
        let served = self.bring_and_compare(model);
        let tally = std::mem::replace(&mut self.tally, earlier);
        model.unchanged()?;
        let swap_in = served?;
        self.tally.add(tally);
        model.state.write(self.pager)?;
        let after = self.pager.stats();
        let swap_in = (!hit).then_some(swap_in);
        model.served(swap_in, &before.manager.totals, &after.manager.totals);
        let bytes = after.engines.bulk_bytes - before.engines.bulk_bytes;
        let ns = after.engines.bulk_ns - before.engines.bulk_ns;
        self.copies.measure(bytes, ns);
        Ok(())
    }

    /// Makes a model resident and compares all of it; the time that the former has taken.
    fn bring_and_compare(&mut self, model: &mut Model) -> Result<Duration, Failure> {
        let mut taken = Duration::ZERO;
        let all = model.buffers().len();
        if !model.tensor_by_tensor {
            match self.bring(model, 0..all, &mut taken) {
                Ok(()) => return self.compare(model, 0..all).map(|()| taken),
                Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                    model.tensor_by_tensor = true;
                }
                Err(error) => return Err(error.into()),
            }
        }
        for index in 0..all {
            self.bring(model, index..index + 1, &mut taken)?;
            self.compare(model, index..index + 1)?;
        }
        Ok(taken)
    }

    /// Names `part` of a model's buffers in one submission and waits until they are filled.
    fn bring(
        &self,
        model: &Model,
        part: Range<usize>,
        taken: &mut Duration,
    ) -> Result<(), vrampager::Error> {
        let start = Instant::now();
        let mut work = self.pager.submission();
        for buffer in &model.buffers()[part] {
            work.read(*buffer)?;
        }
        let done = work.submit().and_then(|work| work.wait());
        *taken += start.elapsed();
        done
    }

    /// Compares `part` of a model's buffers with what they should hold.
    fn compare(&mut self, model: &Model, part: Range<usize>) -> Result<(), Failure> {
        let buffers = &model.buffers()[part.clone()];
        self.window
            .show(self.pager, buffers, |item, offset, found| {
                let index = part.start + item;
                let right = model.expected(index, offset, &mut self.expected, found.len())?;
                self.tally
                    .compare(buffers[item].name(), offset, found, right);
                Ok(())
            })
    }
}

fn config(args: &SwapArgs) -> Config {
    Config {
        device: args.device.device.clone(),
        host: args.host,
        swap: args.swap,
        swap_dir: swap_dir(args).display().to_string(),
        state: args.state,
        requests: args.requests,
        seed: args.seed,
        trace: args
            .trace
            .iter()
            .map(|path| path.display().to_string())
            .collect(),
        speed: args.speed,
    }
}
