//! Orders of a test to the readiness hook while the server runs: the text of a file.
//!
//! No file: ready. `delay <milliseconds>`: ready, after that time. Anything else: not ready, for
//! that reason.

use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use conch_backend_sdk as sdk;
use sdk::Error;

pub fn obey(path: &Path) -> Result<(), Error> {
    let Ok(order) = fs::read_to_string(path) else {
        return Ok(());
    };
    let delay = order
        .strip_prefix("delay ")
        .and_then(|text| text.trim().parse().ok());
    match delay {
        Some(milliseconds) => {
            thread::sleep(Duration::from_millis(milliseconds));
            Ok(())
        }
        None => Err(Error::unavailable(order)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_as_the_file_says() {
        let path = std::env::temp_dir().join(format!("conch-readiness-{}", std::process::id()));
        assert_eq!(obey(&path), Ok(()));
        fs::write(&path, "delay 1\n").unwrap();
        assert_eq!(obey(&path), Ok(()));
        fs::write(&path, "out of order").unwrap();
        assert_eq!(obey(&path), Err(Error::unavailable("out of order")));
        fs::remove_file(&path).unwrap();
    }
}
