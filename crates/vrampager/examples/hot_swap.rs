//! Two models on a card that holds one: their weights come from files, and are dropped, not
//! copied, when the other model is wanted.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::fs::{self, File};

use vrampager::{Buffer, Pager};

const LAYERS: u64 = 6;
const LAYER: u64 = 2 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let pager = Pager::builder("sim:vram=16M,bar=4M")?
        .host(16 << 20)
        .open()?;

    let mut models: Vec<Vec<Buffer>> = Vec::new();
    for model in 0..2_u8 {
        let path = dir.path().join(format!("model{model}.bin"));
        let layers: Vec<u8> = (0..LAYERS * LAYER)
            .map(|i| (i % 199) as u8 ^ model)
            .collect();
        fs::write(&path, layers)?;
        let file = pager.file(File::open(&path)?, &path)?;
        let layer = |i: u64| {
            let name = format!("model{model}/layer{i}");
            pager
                .buffer(&name, LAYER)
                .backed_by(&file, i * LAYER)
                .create()
        };
        models.push((0..LAYERS).map(layer).collect::<Result<_, _>>()?);
    }

    for round in 0..4 {
        let model = &models[round % 2];
        let mut work = pager.submission();
        for layer in model {
            work.read(layer)?;
        }
        work.submit()?.wait()?;
        let totals = pager.stats().manager.totals;
        println!(
            "model{} is resident; so far {} MiB read from files, {} MiB dropped, {} MiB copied out",
            round % 2,
            totals.file_read >> 20,
            totals.dropped_clean >> 20,
            totals.device_to_host >> 20,
        );
    }

    drop(models);
    println!("left on the device: {}", pager.close()?);
    Ok(())
}
