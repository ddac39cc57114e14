//! Deterministic simulation: several clients, random operations, faults, and a model that knows
//! what every byte has to be.
//!
//! `VRAMPAGER_SEEDS=N` runs N seeds instead of 1,000, `VRAMPAGER_SEED=S` only the one.
#![expect(
    clippy::unwrap_used,
    reason = "a simulation's setup either works or ends the test"
)]

mod model;
mod prng;
mod scenario;
mod trace;
mod work;
mod world;

use std::any::Any;
use std::num::NonZero;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use scenario::Scenario;
use trace::Trace;
use vrampager_core::PlantedBug;
use world::World;

/// Seeds of an ordinary run.
const SEEDS: u64 = 1000;
/// Seeds within which every planted bug has to be caught.
const SEEDS_TO_CATCH: u64 = 100;

fn simulate(seed: u64, bug: Option<PlantedBug>) -> Trace {
    let mut world = World::new(Scenario::new(seed));
    if let Some(bug) = bug {
        world.device.plant(bug);
    }
    world.run();
    world.settle();
    world.close()
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without text")
}

/// What went wrong with one seed, if anything did.
fn failure(seed: u64, bug: Option<PlantedBug>) -> Option<String> {
    let twice = || {
        let first = simulate(seed, bug);
        if bug.is_none() {
            assert_eq!(
                first,
                simulate(seed, bug),
                "the same seed gives the same trace"
            );
        }
    };
    let panic = catch_unwind(AssertUnwindSafe(twice)).err()?;
    Some(format!(
        "seed {seed}: {}\nreplay: VRAMPAGER_SEED={seed} cargo test -p vrampager-core --test \
         simulation the_same_seed",
        message(&*panic)
    ))
}

/// All failures among `seeds`, shared out over the processors.
fn failures(seeds: Range<u64>) -> Vec<String> {
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    let share = |first: u64| {
        let mine = seeds.clone().skip(usize::try_from(first).unwrap());
        let mine = mine.step_by(workers);
        mine.filter_map(|seed| failure(seed, None)).collect()
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers as u64)
            .map(|first| scope.spawn(move || -> Vec<String> { share(first) }))
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join().unwrap());
        joined.flatten().collect()
    })
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("a number of seeds, or a seed"))
}

#[test]
fn the_same_seed_gives_the_same_trace_over_a_thousand_seeds() {
    let seeds = match number("VRAMPAGER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("VRAMPAGER_SEEDS").unwrap_or(SEEDS),
    };
    let failures = failures(seeds);
    assert!(
        failures.is_empty(),
        "{} seeds fail\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// The first seed that exposes `bug`, all of which pass without it.
fn first_seed_that_catches(bug: PlantedBug) -> Option<u64> {
    (0..SEEDS_TO_CATCH).find(|&seed| failure(seed, Some(bug)).is_some())
}

#[test]
fn a_mapping_left_behind_by_a_move_is_caught() {
    let caught = first_seed_that_catches(PlantedBug::StaleMapping);
    assert!(caught.is_some_and(|seed| failure(seed, None).is_none()));
}

#[test]
fn pages_reused_while_a_copy_reads_them_are_caught() {
    let caught = first_seed_that_catches(PlantedBug::EarlyPageReuse);
    assert!(caught.is_some_and(|seed| failure(seed, None).is_none()));
}

#[test]
fn a_dirty_buffer_dropped_as_clean_is_caught() {
    let caught = first_seed_that_catches(PlantedBug::DirtyDropped);
    assert!(caught.is_some_and(|seed| failure(seed, None).is_none()));
}

#[test]
fn space_still_counted_after_a_failed_move_is_caught() {
    let caught = first_seed_that_catches(PlantedBug::LostUncharge);
    assert!(caught.is_some_and(|seed| failure(seed, None).is_none()));
}
