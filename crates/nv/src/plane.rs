//! Exclusion of the two real control planes (mission row A2).
//!
//! A process reaches a GPU through the kernel driver or through its PCI registers, never both:
//! each maps memory at addresses that it takes for its own, and a GPU has one master. The rule is
//! kept by an object that whoever opens devices passes to both planes: two [`Planes`] know nothing
//! of one another, so a process has one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;

/// A way to reach real GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Plane {
    /// Through the kernel driver's device nodes.
    #[error("kernel driver")]
    KernelDriver,
    /// Through PCI registers, without the kernel driver.
    #[error("PCI")]
    Pci,
}

/// The other plane is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("the {wanted} plane cannot be used while the {used} plane is")]
pub struct PlanesError {
    /// The plane asked for.
    pub wanted: Plane,
    /// The plane in use.
    pub used: Plane,
}

/// Which plane a program uses at the moment. Clones are the same object.
///
/// # Examples
/// ```
/// use vrampager_nv::{Plane, Planes};
///
/// let planes = Planes::default();
/// let first = planes.enter(Plane::Pci)?;
/// assert!(planes.enter(Plane::KernelDriver).is_err());
/// drop(first);
/// assert!(planes.enter(Plane::KernelDriver).is_ok());
/// # Ok::<(), vrampager_nv::PlanesError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Planes {
    /// The plane in use and how often.
    used: Arc<Mutex<Option<(Plane, u64)>>>,
}

/// Keeps the other plane out until dropped.
#[derive(Debug)]
pub struct Hold {
    planes: Planes,
}

impl Planes {
    /// Begins to use a plane; the same one may be entered many times.
    ///
    /// # Errors
    /// [`PlanesError`] while the other one is in use.
    pub fn enter(&self, wanted: Plane) -> Result<Hold, PlanesError> {
        let mut used = self.lock();
        let count = match *used {
            Some((used, _)) if used != wanted => return Err(PlanesError { wanted, used }),
            Some((_, count)) => count,
            None => 0,
        };
        *used = Some((wanted, count + 1));
        drop(used);
        Ok(Hold {
            planes: self.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Plane, u64)>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut used = self.planes.lock();
        *used = match *used {
            Some((plane, count)) if count > 1 => Some((plane, count - 1)),
            _ => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_exclude_each_other_in_both_directions_until_the_last_holder_is_gone() {
        use Plane::{KernelDriver, Pci};
        for (one, other) in [(KernelDriver, Pci), (Pci, KernelDriver)] {
            let planes = Planes::default();
            let (first, second) = (planes.enter(one).unwrap(), planes.enter(one).unwrap());
            let refused = PlanesError {
                wanted: other,
                used: one,
            };
            assert_eq!(planes.enter(other).unwrap_err(), refused);
            drop(first);
            assert_eq!(planes.enter(other).unwrap_err(), refused);
            drop(second);
            planes.enter(other).unwrap();
        }
    }
}
