//! The stored counts, one file for each platform.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::verdict::REAL_TIME;
use crate::{CALLS, Counts, Platform};

/// The file with the counts of one platform.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Baseline {
    file: PathBuf,
    name: String,
}

impl Baseline {
    /// The file of `platform` in `folder`, whether it exists or not.
    #[must_use]
    pub fn new(folder: &Path, platform: &Platform) -> Self {
        let name = platform.name();
        Baseline {
            file: folder.join(format!("{name}.txt")),
            name,
        }
    }

    /// The name of the platform.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The stored counts. `None` if there is no file for this platform.
    ///
    /// # Errors
    ///
    /// If the file can't be read.
    pub fn read(&self) -> io::Result<Option<Counts>> {
        match fs::read_to_string(&self.file) {
            Ok(text) => Counts::from_text(&text).map(Some).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes the counts that are judged, and `measured_with` in the head of the file.
    ///
    /// # Errors
    ///
    /// If the file can't be written.
    pub fn store(&self, counts: &Counts, measured_with: &[String]) -> io::Result<()> {
        let mut text = format!("# Instructions per call, each a mean of {CALLS} calls.\n");
        for line in measured_with {
            text += &format!("# {}\n", line.trim());
        }
        let mut counts = counts.clone();
        counts.0.retain(|name, _| !name.ends_with(REAL_TIME));
        text += &counts.to_string();
        fs::write(&self.file, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stored_is_read_again() {
        let folder = std::env::temp_dir().join(format!("instructions-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let platform = Platform::from_answers("rustc 1.2.3 (x)", "glibc 2.3", "x86_64");
        let baseline = Baseline::new(&folder, &platform);
        assert_eq!(baseline.read().unwrap(), None);
        let counts = Counts::from_text("handle::schedule 751.744").unwrap();
        baseline
            .store(&counts, &["valgrind-3\n".to_owned()])
            .unwrap();
        assert_eq!(baseline.read().unwrap(), Some(counts.clone()));
        let more = Counts::from_text("handle::schedule 751.744\nx_in_real_time 1").unwrap();
        baseline.store(&more, &[]).unwrap();
        assert_eq!(baseline.read().unwrap(), Some(counts));
        fs::write(&baseline.file, "handle::schedule").unwrap();
        assert!(baseline.read().is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
