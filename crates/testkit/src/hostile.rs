//! Feeds a parser what an enemy may send: a committed corpus, all that it can be cut to, and bytes made from it by chance.
//!
//! The same functions run under `cargo fuzz`, see `fuzz/README.md`.

use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, TestRunner};

/// Cases by chance; with what the corpus gives, a target takes well below a second.
const CASES: u32 = 512;
/// Longest bytes by chance.
const LENGTH: usize = 512;
/// Changes that are made to a file of the corpus.
const CHANGES: usize = 8;
/// Cuts of a file of the corpus.
const CUTS: usize = 256;

/// Calls `parse` with each; it fails by a panic. The corpus is `fuzz/corpus/<target>`, and must not be empty.
///
/// # Panics
/// When `parse` does, with the smallest bytes that were found to make it; and without a corpus.
pub fn feed(target: &str, parse: impl Fn(&[u8])) {
    let folder = format!("{}/../../fuzz/corpus/{target}", env!("CARGO_MANIFEST_DIR"));
    let corpus = read(Path::new(&folder));
    for bytes in &corpus {
        let step = bytes.len() / CUTS + 1;
        for cut in (0..bytes.len()).step_by(step) {
            parse(&bytes[..cut]);
        }
        parse(bytes);
    }
    let change = (any::<Index>(), any::<u8>(), 0..3_u8);
    let changed = (select(corpus), vec(change, 1..CHANGES)).prop_map(|(mut bytes, changes)| {
        for (at, byte, kind) in changes {
            match (kind, bytes.is_empty()) {
                (0, false) => {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
                (1, false) => drop(bytes.remove(at.index(bytes.len()))),
                _ => bytes.insert(at.index(bytes.len() + 1), byte),
            }
        }
        bytes
    });
    let any_bytes = vec(any::<u8>(), 0..LENGTH);
    let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&prop_oneof![changed, any_bytes], |bytes| {
        parse(&bytes);
        Ok(())
    });
    assert!(outcome.is_ok(), "{target}: {outcome:?}");
}

fn read(folder: &Path) -> Vec<Vec<u8>> {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut corpus: Vec<_> = files.filter_map(|file| std::fs::read(file.path()).ok()).collect();
    // The order of a folder is the file system's.
    corpus.sort();
    assert!(!corpus.is_empty(), "{}: no corpus", folder.display());
    corpus
}
