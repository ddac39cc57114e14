//! Acceptance suites, one per contract.
