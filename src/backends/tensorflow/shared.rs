//! Sessions that instances of a model share.

use std::sync::{Arc, Mutex, PoisonError};

use conch_backend_sdk::Error;

use crate::loaded::{Devices, Loaded};

/// The sessions of a model that further instances may use.
pub struct SharedSessions {
    /// Instances per session.
    share_max: usize,
    open: Mutex<Vec<Open>>,
}

struct Open {
    devices: Devices,
    loaded: Arc<Loaded>,
    instance_count: usize,
}

impl SharedSessions {
    pub fn new(share_max: usize) -> Self {
        SharedSessions {
            share_max,
            open: Mutex::default(),
        }
    }

    /// Keeps a session that no instance uses yet.
    pub fn keep(&self, devices: Devices, loaded: Loaded) {
        self.lock().push(Open {
            devices,
            loaded: Arc::new(loaded),
            instance_count: 0,
        });
    }

    /// A session for one more instance, which `load` makes where no other has room. Instances that
    /// may share one are loaded one after the other.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn take(
        &self,
        devices: Devices,
        load: impl FnOnce() -> Result<Loaded, Error>,
    ) -> Result<Arc<Loaded>, Error> {
        let mut open = self.lock();
        if let Some(index) = open.iter().position(|open| open.devices == devices) {
            let Some(found) = open.get_mut(index) else {
                return Err(Error::internal("a session that was there is gone"));
            };
            found.instance_count += 1;
            let loaded = Arc::clone(&found.loaded);
            // A full one is its instances' alone.
            if found.instance_count >= self.share_max {
                open.swap_remove(index);
            }
            return Ok(loaded);
        }
        if self.share_max == 1 {
            drop(open);
            return load().map(Arc::new);
        }
        let loaded = Arc::new(load()?);
        open.push(Open {
            devices,
            loaded: Arc::clone(&loaded),
            instance_count: 1,
        });
        Ok(loaded)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
