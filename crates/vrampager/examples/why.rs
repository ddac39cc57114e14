//! A request that cannot be satisfied, and what it says about it.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use vrampager::Pager;

fn main() -> Result<(), Box<dyn Error>> {
    let pager = Pager::builder("sim:vram=16M")?.host(8 << 20).open()?;
    let display = pager.buffer("display", 6 << 20).create()?;
    let _scan_out = display.pin()?;
    let weights = pager.buffer("weights", 9 << 20).create()?;
    let cache = pager.buffer("cache", 2 << 20).create()?;

    let mut work = pager.submission();
    work.read(&weights)?.fill(&cache, 0, cache.len(), 1)?;
    match work.submit() {
        Ok(_) => Err("17 MiB cannot fit in 16".into()),
        Err(error) => {
            println!("{error}");
            Ok(())
        }
    }
}
