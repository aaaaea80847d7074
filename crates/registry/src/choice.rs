//! Chooses the image for this machine from an index.

use crate::Error;
use crate::manifest::Entry;
use crate::platform::Platform;

/// Maximum platforms that a message names.
const MAX_NAMED: usize = 12;

/// Returns the entry for the machine. Entries of attestations, whose platform is unknown, are left out. An entry without
/// platform counts only where it is the only one.
pub(crate) fn choose<'a>(entries: &'a [Entry], machine: &Platform) -> Result<&'a Entry, Error> {
    let ranked = entries.iter().filter_map(|e| Some((e.platform.as_ref()?.rank_on(machine)?, e)));
    if let Some((_, entry)) = ranked.min_by_key(|(rank, _)| *rank) {
        return Ok(entry);
    }
    if let [entry] = entries
        && entry.platform.is_none()
    {
        return Ok(entry);
    }
    let known = entries.iter().filter_map(|e| e.platform.as_ref()).filter(|p| p.os != "unknown");
    let mut names: Vec<String> = known.map(ToString::to_string).collect();
    names.sort();
    names.dedup();
    let more = names.len().saturating_sub(MAX_NAMED);
    names.truncate(MAX_NAMED);
    let mut has = if names.is_empty() { "no platform".to_owned() } else { names.join(", ") };
    if more > 0 {
        has.push_str(&format!(" and {more} more"));
    }
    Err(Error::Platform { wanted: machine.to_string(), has })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Digest;
    use crate::manifest::Blob;

    fn platform(text: &str) -> Platform {
        let mut parts = text.split('/').map(str::to_owned);
        let mut next = || parts.next();
        Platform { os: next().unwrap(), architecture: next().unwrap(), variant: next() }
    }

    fn index(platforms: &[&str]) -> Vec<Entry> {
        let entry = |text: &&str| Entry {
            blob: Blob { digest: Digest::of(text.as_bytes()), size: 1 },
            platform: (!text.is_empty()).then(|| platform(text)),
        };
        platforms.iter().map(entry).collect()
    }

    #[test]
    fn entry_of_this_machine_is_chosen() {
        for (machine, platforms, chosen) in [
            ("linux/amd64", &["linux/arm64/v8", "unknown/unknown", "linux/amd64"][..], "linux/amd64"),
            ("linux/arm64", &["linux/amd64", "linux/arm/v7", "linux/arm64/v8"], "linux/arm64/v8"),
            ("linux/amd64", &["linux/amd64/v3", "linux/amd64/v1", "linux/amd64"], "linux/amd64"),
            ("linux/amd64", &["windows/amd64", "linux/amd64/v1"], "linux/amd64/v1"),
            ("linux/amd64", &[""], ""),
        ] {
            let entries = index(platforms);
            let found = choose(&entries, &platform(machine)).unwrap();
            assert_eq!(found.blob.digest, Digest::of(chosen.as_bytes()), "{platforms:?}");
        }
    }

    #[test]
    fn image_for_other_machines_is_refused_by_what_it_has() {
        for (platforms, has) in [
            (
                &["linux/arm64/v8", "windows/amd64", "unknown/unknown"][..],
                "it is for linux/arm64/v8, windows/amd64",
            ),
            (&["linux/amd64/v4"], "it is for linux/amd64/v4"),
            (&["unknown/unknown"], "no platform"),
            (&["", ""], "no platform"),
            (&[], "no platform"),
        ] {
            let error = choose(&index(platforms), &platform("linux/amd64")).unwrap_err().to_string();
            assert!(error.contains(has), "{platforms:?}: {error}");
        }
    }
}
