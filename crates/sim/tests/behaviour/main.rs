//! What the simulated device promises beyond the contracts, whose suites are run by `accept`.

#[cfg(test)]
mod bench;
#[cfg(test)]
mod determinism;
#[cfg(test)]
mod device;
#[cfg(test)]
mod random;
