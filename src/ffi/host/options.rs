//! Options of the plug-in host.

use std::path::{Path, PathBuf};

use conch_engine::HostPolicies;

/// What the host is made with.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// `name` of the server metadata, for backends that ask.
    pub server_id: String,
    /// Holds one directory per backend.
    pub backend_directory: PathBuf,
    /// `--backend-config`: backend (empty: all of them), setting, value.
    pub backend_config: Vec<(String, String, String)>,
    /// Whether backends may complete configurations.
    pub auto_complete: bool,
    /// What a completed configuration batches up to, unless `backend_config` says otherwise.
    pub default_max_batch_size: u32,
    /// The oldest GPU generation to use, for backends that ask.
    pub capability_min: f64,
    /// Where instances run, for backends that ask.
    pub host_policies: HostPolicies,
    /// Holds one directory per response cache.
    pub cache_directory: PathBuf,
    /// The response cache: its name and its configuration (JSON). Empty: none; more than one is
    /// refused at the start.
    pub cache_config: Vec<(String, String)>,
    /// Holds one directory per repository agent.
    pub repoagent_directory: PathBuf,
}

/// The root of Triton's installation.
const TRITON_ROOT: &str = "/opt/tritonserver";

impl HostOptions {
    /// With the directories of the installation that `executable` belongs to: those in
    /// `<root>/lib/conch`, or in `<root>` itself as Triton has it, for an executable in
    /// `<root>/bin`; else Triton's.
    pub fn of_executable(executable: Option<&Path>) -> HostOptions {
        let options = HostOptions::default();
        match executable.and_then(plugin_root) {
            Some(root) => options.within(&root),
            None => options,
        }
    }

    fn within(self, root: &Path) -> HostOptions {
        HostOptions {
            backend_directory: root.join("backends"),
            cache_directory: root.join("caches"),
            repoagent_directory: root.join("repoagents"),
            ..self
        }
    }
}

/// Where the plug-ins lie that were installed with `executable`.
fn plugin_root(executable: &Path) -> Option<PathBuf> {
    let folder = executable.parent()?;
    // Elsewhere, as where Cargo builds, a folder of that name may be anyone's.
    if folder.file_name()? != "bin" {
        return None;
    }
    let root = folder.parent()?;
    let places = [root.join("lib/conch"), root.to_owned()];
    places.into_iter().find(|it| it.join("backends").is_dir())
}

impl Default for HostOptions {
    fn default() -> HostOptions {
        HostOptions {
            server_id: String::from("triton"),
            backend_directory: Path::new(TRITON_ROOT).join("backends"),
            backend_config: Vec::new(),
            auto_complete: true,
            default_max_batch_size: 4,
            capability_min: conch_engine::gpus::GpuOptions::default().capability_min,
            host_policies: HostPolicies::default(),
            cache_directory: Path::new(TRITON_ROOT).join("caches"),
            cache_config: Vec::new(),
            repoagent_directory: Path::new(TRITON_ROOT).join("repoagents"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_looked_for_beside_the_executable() {
        let root = std::env::temp_dir().join(format!("conch-ffi-root-{}", std::process::id()));
        std::fs::create_dir_all(root.join("bin")).unwrap();
        let of = |executable: &Path| HostOptions::of_executable(Some(executable));
        let executable = root.join("bin/conch");
        let triton = HostOptions::default().backend_directory;
        assert_eq!(triton, Path::new("/opt/tritonserver/backends"));
        assert_eq!(of(&executable).backend_directory, triton);
        std::fs::create_dir_all(root.join("backends")).unwrap();
        assert_eq!(of(&executable).backend_directory, root.join("backends"));
        assert_eq!(of(&root.join("ci/conch")).backend_directory, triton);
        assert_eq!(HostOptions::of_executable(None).backend_directory, triton);
        std::fs::create_dir_all(root.join("lib/conch/backends")).unwrap();
        let options = of(&executable);
        for (found, name) in [
            (options.backend_directory, "backends"),
            (options.cache_directory, "caches"),
            (options.repoagent_directory, "repoagents"),
        ] {
            assert_eq!(found, root.join("lib/conch").join(name));
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
