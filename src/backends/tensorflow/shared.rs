//! Sessions that instances of a model share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use conch_backend_sdk::Error;

use crate::loaded::Devices;

/// The sessions of a model that further instances may use. `L` is a model in a session.
pub struct SharedSessions<L> {
    /// Instances per session.
    share_max: usize,
    open: Mutex<Vec<SharedSession<L>>>,
}

struct SharedSession<L> {
    devices: Devices,
    loaded: Arc<L>,
    instance_count: usize,
}

impl<L> SharedSessions<L> {
    pub fn new(share_max: usize) -> Self {
        SharedSessions {
            share_max,
            open: Mutex::default(),
        }
    }

    /// A session for one more instance, which `load` makes where no other has room. Instances that
    /// may share one are loaded one after the other.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn take(
        &self,
        devices: Devices,
        load: impl FnOnce() -> Result<L, Error>,
    ) -> Result<Arc<L>, Error> {
        if self.share_max == 1 {
            return load().map(Arc::new);
        }
        let mut open = self.lock();
        let mut sessions = open.iter_mut();
        let has_room = |open: &&mut SharedSession<L>| {
            open.devices == devices && open.instance_count < self.share_max
        };
        if let Some(found) = sessions.find(has_room) {
            found.instance_count += 1;
            return Ok(Arc::clone(&found.loaded));
        }
        let loaded = Arc::new(load()?);
        // Full ones are their instances' alone.
        open.retain(|open| open.instance_count < self.share_max);
        open.push(SharedSession {
            devices,
            loaded: Arc::clone(&loaded),
            instance_count: 1,
        });
        Ok(loaded)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SharedSession<L>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which sessions so many instances get, by number.
    fn taken(share_max: usize, devices: &[Devices]) -> Vec<usize> {
        let sessions = SharedSessions::new(share_max);
        let mut made = 0;
        devices
            .iter()
            .map(|&devices| {
                let load = || {
                    made += 1;
                    Ok(made)
                };
                *sessions.take(devices, load).unwrap()
            })
            .collect()
    }

    #[test]
    fn sessions_have_so_many_instances() {
        use Devices::{Any, Cpus};
        assert_eq!(taken(1, &[Cpus, Cpus, Any]), [1, 2, 3]);
        assert_eq!(taken(2, &[Cpus; 5]), [1, 1, 2, 2, 3]);
        // Those elsewhere are others.
        assert_eq!(taken(2, &[Cpus, Any, Cpus, Any, Any]), [1, 2, 1, 2, 3]);
    }

    #[test]
    fn one_that_failed_is_tried_again() {
        let sessions = SharedSessions::new(3);
        let refused = sessions.take(Devices::Cpus, || Err(Error::internal("no")));
        assert!(refused.is_err());
        assert_eq!(*sessions.take(Devices::Cpus, || Ok(7)).unwrap(), 7);
        assert_eq!(*sessions.take(Devices::Cpus, || Ok(8)).unwrap(), 7);
    }
}
