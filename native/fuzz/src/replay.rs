//! Replays a recording of `make compare-native` with the library that this program is linked to.
//!
//! A recording holds models with their batches, and what the backend answered on another machine.
//! Numbers and texts have the format of [`testserver::wire`]. A model is the number 1, its files
//! (names and contents), its configuration and the error of its load, which is empty if it loaded.
//! A batch of the last model is the number 2, the requests and the answers.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use testserver::model::Loaded;
use testserver::wire::{Reader, execute};

const MODEL: i64 = 1;
const BATCH: i64 = 2;
/// Most differences that are printed.
const SHOWN: usize = 5;

#[derive(Default)]
struct Replay {
    models: usize,
    refused: usize,
    batches: usize,
    differences: usize,
}

impl Replay {
    fn differs(&mut self, what: &str, expected: &[u8], found: &[u8]) {
        self.differences += 1;
        if self.differences <= SHOWN {
            let [expected, found] = [expected, found].map(String::from_utf8_lossy);
            println!("DIFFERENT: {what}: expected {expected:?}, found {found:?}");
        }
    }

    /// Loads the next model; returns it if it loads here and did so in the recording.
    fn load(&mut self, reader: &mut Reader<'_>, folder: &Path) -> Option<Loaded> {
        let version = folder.join("1");
        let _ = std::fs::remove_dir_all(&version);
        std::fs::create_dir_all(&version).expect("the temporary folder is writable");
        let files = reader.list(|reader| (reader.bytes(), reader.bytes()));
        for (name, content) in files {
            let file = version.join(OsStr::from_bytes(name));
            std::fs::write(file, content).expect("the temporary folder is writable");
        }
        let (config, expected) = (reader.text(), reader.bytes());
        let path = CString::new(folder.as_os_str().as_bytes()).expect("no NUL in a path");
        self.models += 1;
        self.refused += usize::from(!expected.is_empty());
        let what = format!("load of model {}", self.models);
        match Loaded::new(config, path) {
            Ok(loaded) if expected.is_empty() => Some(loaded),
            Ok(_) => {
                self.differs(&what, expected, b"");
                None
            }
            Err(error) => {
                if error.as_bytes() != expected {
                    self.differs(&what, expected, error.as_bytes());
                }
                None
            }
        }
    }

    fn batch(&mut self, reader: &mut Reader<'_>, loaded: Option<&mut Loaded>) {
        let (requests, expected) = (reader.bytes(), reader.bytes());
        self.batches += 1;
        let found = loaded.map_or_else(Vec::new, |loaded| execute(loaded, requests));
        if found != expected {
            let what = format!("batch {} of model {}", self.batches, self.models);
            self.differs(&what, expected, &found);
        }
    }
}

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        println!("usage: replay RECORDING");
        return ExitCode::FAILURE;
    };
    let recording = std::fs::read(&path).expect("the recording is readable");
    let folder = std::env::temp_dir().join(format!("replay-{}", std::process::id()));
    let (mut reader, mut replay, mut loaded) = (Reader::new(&recording), Replay::default(), None);
    while !reader.is_empty() {
        match reader.number() {
            MODEL => {
                drop(loaded.take());
                loaded = replay.load(&mut reader, &folder);
            }
            BATCH => replay.batch(&mut reader, loaded.as_mut()),
            other => panic!("a recording has no entries of kind {other}"),
        }
    }
    drop(loaded);
    std::fs::remove_dir_all(&folder).expect("the temporary folder is writable");
    println!(
        "{} on {}: {} models ({} refused), {} batches, {} differences",
        path.display(),
        std::env::consts::ARCH,
        replay.models,
        replay.refused,
        replay.batches,
        replay.differences
    );
    let succeeded = replay.batches > 0 && replay.differences == 0;
    if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
