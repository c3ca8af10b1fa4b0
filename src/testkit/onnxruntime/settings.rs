//! The settings that a test gives the double, in `CONCH_ORT_DOUBLE` as `key=value` with `;`
//! between.

use std::sync::OnceLock;

pub struct Settings {
    /// `missing`: a library that the provider CUDA needs and that is not there.
    pub missing: Option<String>,
    /// `providers`: the execution providers beside the CPU's, with `,` between.
    pub providers: Vec<String>,
    /// `copies`: operators on the CPU that the graph of each session has between those on the GPU.
    pub copies: u32,
    /// `partitioned`: TensorRT leaves operators to others.
    pub is_partitioned: bool,
    /// `run_us`: what each run takes on its stream.
    pub run_us: u64,
    /// `room_bytes`: the device memory that one output may have.
    pub room_bytes: Option<usize>,
}

pub fn settings() -> &'static Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    SETTINGS.get_or_init(|| read(&std::env::var("CONCH_ORT_DOUBLE").unwrap_or_default()))
}

fn read(text: &str) -> Settings {
    let value = |key: &str| {
        let mut entries = text.split(';').filter_map(|entry| entry.split_once('='));
        entries
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value.to_owned())
    };
    let providers = value("providers").unwrap_or_else(|| "Tensorrt,CUDA".to_owned());
    Settings {
        missing: value("missing"),
        providers: providers
            .split(',')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
        copies: value("copies")
            .and_then(|copies| copies.parse().ok())
            .unwrap_or(0),
        is_partitioned: value("partitioned").is_some(),
        run_us: value("run_us").and_then(|us| us.parse().ok()).unwrap_or(0),
        room_bytes: value("room_bytes").and_then(|bytes| bytes.parse().ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_settings() {
        let settings = read("missing=libcublas.so;providers=CUDA");
        assert_eq!(settings.missing.as_deref(), Some("libcublas.so"));
        assert_eq!(settings.providers, ["CUDA"]);
        assert_eq!(read("").providers, ["Tensorrt", "CUDA"]);
        assert!(read("providers=").providers.is_empty());
        assert_eq!(read("room_bytes=12").room_bytes, Some(12));
        let settings = read("copies=3;run_us=9;partitioned=1");
        assert_eq!((settings.copies, settings.run_us), (3, 9));
        assert!(settings.is_partitioned && !read("").is_partitioned);
    }
}
