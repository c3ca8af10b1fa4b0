//! Where the threads that change models run, and how readily.
//!
//! To load a model is work of milliseconds to minutes: files are read, configurations parsed,
//! frameworks compile and allocate. It keeps off the shards' CPUs where cores do, and gives way
//! where cores do. What a backend starts meanwhile (threads of its own, processes of models in
//! Python) inherits both, as from a core.

use conch_net::affinity;

/// How much nicer threads are that give way to shards: one that computes gets about a third of a
/// shard's share when both want one CPU (weights 335 and 1024).
pub(crate) const NICE: i32 = 5;

/// Of all threads that load and unload. The default leaves them as they are: without shards they
/// are threads of somebody else's program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoaderPlacement {
    /// None: those of whoever started the thread.
    cpus: Option<Vec<usize>>,
    gives_way: bool,
}

impl LoaderPlacement {
    /// Beside shards: where cores run that have no GPU, and as readily as those.
    pub(crate) fn beside_shards(cpus: &[usize], gives_way: bool) -> LoaderPlacement {
        LoaderPlacement {
            cpus: Some(cpus.to_vec()),
            gives_way,
        }
    }

    /// Whether loads must not be done by a thread that has other things to do afterwards: a thread
    /// that gave way cannot take that back.
    pub fn needs_own_threads(&self) -> bool {
        *self != LoaderPlacement::default()
    }

    /// Applies this to the calling thread, which is one of the server's own. What the system
    /// refuses (a container may) is left as it is.
    pub fn apply(&self) {
        if let Some(cpus) = &self.cpus
            && let Err(error) = affinity::confine_current_thread(cpus)
        {
            conch_log::verbose!(1, "cannot confine a loader to CPUs {cpus:?}: {error}");
        }
        if self.gives_way
            && let Err(error) = affinity::lower_priority_of_current_thread(NICE)
        {
            conch_log::verbose!(1, "cannot lower the priority of a loader: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(placement: &LoaderPlacement) -> (Vec<usize>, i32) {
        std::thread::scope(|scope| {
            let applied = scope.spawn(|| {
                placement.apply();
                let nice = own_nice();
                (affinity::current_cpus().unwrap(), nice)
            });
            applied.join().unwrap()
        })
    }

    /// Of the calling thread: the 19th field of its `stat`, the 17th after its name.
    fn own_nice() -> i32 {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.split(' ').nth(16).unwrap().parse().unwrap()
    }

    #[test]
    fn a_loader_runs_where_cores_do_and_gives_way_as_they_do() {
        let (own, nice) = (affinity::current_cpus().unwrap(), own_nice());
        assert!(!LoaderPlacement::default().needs_own_threads());
        assert_eq!(applied(&LoaderPlacement::default()), (own.clone(), nice));
        for (cpus, gives_way) in [(&own[..], true), (&own[..1], true), (&own[..1], false)] {
            let placement = LoaderPlacement::beside_shards(cpus, gives_way);
            assert!(placement.needs_own_threads());
            let lowered = if gives_way {
                (nice + NICE).min(19)
            } else {
                nice
            };
            assert_eq!(applied(&placement), (cpus.to_vec(), lowered));
        }
    }
}
