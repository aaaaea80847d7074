//! `hutch image list`, `inspect`, `export`, `remove` and `prune`.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use hutch_image::{Catalog, Freed, ImageConfig, Listed};
use hutch_registry::ImageName;
use serde_json::{Value, json};

use super::progress::Meter;
use super::{ImageFolders, PULLED_FOR_PODS};
use crate::cli::{
    ImageExportArguments, ImageInspectArguments, ImageListArguments, ImagePruneArguments,
    ImageRemoveArguments,
};
use crate::quantity;

/// Digits of a digest that are shown.
const SHORT: usize = 12;
/// Minimum digits of a digest that name an image.
const LEAST_DIGITS: usize = 4;

pub(super) fn list(arguments: &ImageListArguments) -> anyhow::Result<()> {
    let images = images(&ImageFolders::named(arguments.folder.data_dir.as_deref())?.catalog())?;
    if arguments.json {
        return print([printable(&Value::from(images.iter().map(summary).collect::<Vec<_>>()).to_string())]);
    }
    if arguments.quiet {
        return print(images.iter().flat_map(|image| &image.names).map(|name| plain(name)));
    }
    let rows: Vec<[String; 5]> = images.iter().flat_map(rows).collect();
    let title = ["IMAGE", "TAG", "IMAGE ID", "SIZE", "LAST USED"].map(str::to_owned);
    let width = |column: usize| {
        rows.iter().chain([&title]).map(|row| row[column].chars().count()).max().unwrap_or_default() + 3
    };
    let widths: [usize; 4] = [0, 1, 2, 3].map(width);
    print([&title].into_iter().chain(&rows).map(|row| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}{}", cells.collect::<String>(), row[4])
    }))
}

/// Prints lines. It fails if the program that reads them has ended.
fn print(lines: impl IntoIterator<Item = String>) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    for line in lines {
        writeln!(output, "{line}")?;
    }
    Ok(output.flush()?)
}

/// Returns the images that can be read, and reports damaged folders. It fails where none can be read.
fn images(catalog: &Catalog) -> anyhow::Result<Vec<Listed>> {
    let (images, mut damaged) = catalog.list();
    if images.is_empty()
        && let Some(error) = damaged.pop()
    {
        return Err(error.into());
    }
    damaged.iter().for_each(|error| eprintln!("hutch image: {}", plain(&error.to_string())));
    Ok(images)
}

/// A line for each name.
fn rows(image: &Listed) -> Vec<[String; 5]> {
    let size = match image.problem {
        Some(_) => "damaged".to_owned(),
        None => quantity::shown(image.size),
    };
    let used = match (image.users.is_empty(), image.last_used) {
        (false, _) => "in use".to_owned(),
        (true, Some(time)) => ago(SystemTime::now().duration_since(time).unwrap_or_default()),
        (true, None) => "never".to_owned(),
    };
    let row = |name: &String| {
        let (repository, tag) = match ImageName::parse(name) {
            Ok(parsed) => (
                format!("{}/{}", parsed.registry(), parsed.repository()),
                parsed.tag().unwrap_or("<none>").to_owned(),
            ),
            Err(_) => (plain(name), "<none>".to_owned()),
        };
        [repository, tag, short(&image.digest), size.clone(), used.clone()]
    };
    image.names.iter().map(row).collect()
}

fn summary(image: &Listed) -> Value {
    json!({
        "names": image.names,
        "digest": image.pulled,
        "manifest": image.digest,
        "size": image.size,
        "created": image.created,
        "lastUsed": image.last_used.map(seconds),
        "inUseBy": image.users,
        "forPods": image.folder.ends_with(PULLED_FOR_PODS),
        "problem": image.problem,
    })
}

pub(super) fn inspect(arguments: &ImageInspectArguments) -> anyhow::Result<()> {
    let catalog = ImageFolders::named(arguments.folder.data_dir.as_deref())?.catalog();
    let images = images(&catalog)?;
    let one = |text: &String| -> anyhow::Result<Value> {
        let image = find(&images, text)?.0;
        Ok(details(image, &catalog.config(image)?))
    };
    let found: Vec<Value> = arguments.images.iter().map(one).collect::<anyhow::Result<_>>()?;
    print([printable(&serde_json::to_string_pretty(&found)?)])
}

fn details(image: &Listed, config: &ImageConfig) -> Value {
    let layer = |layer: &hutch_image::ListedLayer| {
        json!({
            "digest": layer.digest,
            "diffID": layer.diff_id,
            "size": layer.size,
            "unpackedSize": layer.unpacked.as_ref().map(|_| layer.disk_usage()),
            "folder": layer.unpacked,
        })
    };
    let env: BTreeMap<_, _> = config.env.iter().cloned().collect();
    let mut all = summary(image);
    all["config"] = json!({
        "digest": image.config_digest,
        "platform": image.platform,
        "entrypoint": config.entrypoint,
        "cmd": config.cmd,
        "env": env,
        "workingDir": config.working_dir,
        "user": config.user,
        "stopSignal": config.stop_signal.as_raw(),
    });
    all["layers"] = image.layers.iter().map(layer).collect();
    all
}

/// Writes an archive. A file has its name only when it is whole.
pub(super) fn export(arguments: &ImageExportArguments) -> anyhow::Result<()> {
    let is_output = arguments.to.as_os_str() == "-";
    ensure!(!is_output || !arguments.json, "--json: with -, the archive is the output: name a FILE");
    let catalog = ImageFolders::named(arguments.folder.data_dir.as_deref())?.catalog();
    let images = images(&catalog)?;
    let (image, names) = find(&images, &arguments.image)?;
    if let Some(problem) = &image.problem {
        bail!("{}: {}", arguments.image, plain(problem));
    }
    let name = names.first().or_else(|| trusted(image).next()).context("the image has no name")?;
    let parsed = ImageName::parse(name)?;
    let name = (name.as_str(), parsed.tag());
    if is_output {
        let output = std::io::stdout().lock();
        ensure!(!output.is_terminal(), "standard output is a terminal: write a FILE, or a pipe");
        return write(&catalog, image, name, output);
    }
    let at = || arguments.to.display().to_string();
    // A link to a file stays one.
    let to = arguments.to.canonicalize().unwrap_or_else(|_| arguments.to.clone());
    match to.metadata() {
        Ok(found) if found.is_dir() => bail!("{}: is a folder: name a FILE", at()),
        Ok(found) if !found.is_file() => {
            // A device or a pipe is written, and never replaced.
            let file = std::fs::File::options().write(true).open(&to).with_context(at)?;
            write(&catalog, image, name, std::io::BufWriter::new(file))?;
            return exported(arguments, name.0, image);
        }
        _ => {}
    }
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made = tempfile::NamedTempFile::new_in(folder);
    let mut file = made.with_context(|| format!("{}: cannot make a file there", folder.display()))?;
    write(&catalog, image, name, std::io::BufWriter::new(file.as_file_mut()))?;
    file.as_file().sync_all().with_context(at)?;
    file.persist(&to).map_err(|error| error.error).with_context(at)?;
    exported(arguments, name.0, image)
}

/// Writes an archive, with a bar.
fn write(
    catalog: &Catalog,
    image: &Listed,
    name: (&str, Option<&str>),
    output: impl Write,
) -> anyhow::Result<()> {
    let meter = Meter::new("export");
    catalog.export(image, name, meter.of(output, image.size))?;
    meter.end();
    Ok(())
}

/// Prints the image that was exported.
fn exported(arguments: &ImageExportArguments, name: &str, image: &Listed) -> anyhow::Result<()> {
    if !arguments.json {
        return print([plain(name)]);
    }
    let file = arguments.to.display().to_string();
    let result = json!({"name": name, "digest": image.pulled, "manifest": image.digest, "file": file});
    print([printable(&result.to_string())])
}

pub(super) fn remove(arguments: &ImageRemoveArguments) -> anyhow::Result<()> {
    let catalog = ImageFolders::named(arguments.folder.data_dir.as_deref())?.catalog();
    let (mut all, mut names, mut failed) = (Freed::default(), Vec::new(), Vec::new());
    for text in &arguments.images {
        match remove_one(&catalog, text) {
            Ok((gone, freed)) => {
                names.extend(gone);
                add(&mut all, freed);
            }
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    let printed = report(arguments.json, "Untagged", &names, &all);
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    printed
}

fn remove_one(catalog: &Catalog, text: &str) -> anyhow::Result<(Vec<String>, Freed)> {
    let images = images(catalog)?;
    let (image, names) = find(&images, text)?;
    let freed = catalog.remove(image, &names)?;
    Ok((if names.is_empty() { image.names.clone() } else { names }, freed))
}

pub(super) fn prune(arguments: &ImagePruneArguments) -> anyhow::Result<()> {
    let catalog = ImageFolders::named(arguments.folder.data_dir.as_deref())?.catalog();
    let (mut all, mut names) = (Freed::default(), Vec::new());
    for image in if arguments.all { images(&catalog)? } else { Vec::new() } {
        match catalog.remove(&image, &[]) {
            Ok(freed) => {
                names.extend(image.names);
                add(&mut all, freed);
            }
            Err(error @ hutch_image::Error::InUse { .. }) => {
                eprintln!("hutch image prune: {}", plain(&error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    add(&mut all, catalog.prune()?);
    let printed = report(arguments.json, "Removed", &names, &all);
    ensure!(all.failed.is_empty(), "what is named above could not be removed");
    printed
}

/// Finds an image, and the name that the text means; none means all.
fn find<'a>(images: &'a [Listed], text: &str) -> anyhow::Result<(&'a Listed, Vec<String>)> {
    if let Ok(name) = ImageName::parse(text) {
        let full = name.to_string();
        if let Some(image) = images.iter().find(|image| trusted(image).any(|other| *other == full)) {
            return Ok((image, vec![full]));
        }
        // A Pod's image has the name of its manifest's digest; a registry may have another one for it.
        let named = images.iter().find(|image| {
            let of =
                |other: &String| ImageName::parse(other).is_ok_and(|other| same_repository(&other, &name));
            name.digest().is_some_and(|digest| digest.to_string() == image.pulled) && trusted(image).any(of)
        });
        if let Some(image) = named {
            return Ok((image, Vec::new()));
        }
    }
    // Imported images are named without their registry, too.
    if let Ok(name) = ImageName::parse_imported(text)
        && let Some(image) = images.iter().find(|image| image.names.contains(&name.to_string()))
        && trusted(image).any(|other| *other == name.to_string())
    {
        return Ok((image, vec![name.to_string()]));
    }
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    let is_digits = digits.len() >= LEAST_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    // A pull prints the digest that the registry has, which may be that of an index.
    let hex = |image: &&Listed| {
        let of = |digest: &str| digest.strip_prefix("sha256:").is_some_and(|hex| hex.starts_with(digits));
        of(&image.digest) || of(&image.pulled)
    };
    match images.iter().filter(|image| is_digits && hex(image)).collect::<Vec<_>>()[..] {
        [image] => Ok((image, Vec::new())),
        [] => bail!("no image {} is here: hutch image list shows them", plain(text)),
        _ => bail!("several images have digests that begin with {digits}"),
    }
}

/// Names that lead to the image. The process that pulls for Pods parses what registries send and may have been taken over:
/// of its names, only the digest of the manifest counts.
fn trusted(image: &Listed) -> impl Iterator<Item = &String> {
    let for_pods = image.folder.ends_with(PULLED_FOR_PODS);
    let is_of = |name: &String| {
        ImageName::parse(name)
            .is_ok_and(|name| name.digest().is_some_and(|digest| digest.to_string() == image.digest))
    };
    image.names.iter().filter(move |name| !for_pods || is_of(name))
}

fn same_repository(a: &ImageName, b: &ImageName) -> bool {
    (a.registry(), a.repository()) == (b.registry(), b.repository())
}

fn add(all: &mut Freed, freed: Freed) {
    all.bytes += freed.bytes;
    all.removed.extend(freed.removed);
    all.pulling.extend(freed.pulling);
    all.failed.extend(freed.failed);
}

fn report(as_json: bool, verb: &str, names: &[String], freed: &Freed) -> anyhow::Result<()> {
    for folder in &freed.pulling {
        eprintln!(
            "hutch image: a pull is in progress in {}: hutch image prune removes the blobs later",
            folder.display()
        );
    }
    freed.failed.iter().for_each(|why| eprintln!("hutch image: {}", plain(why)));
    if as_json {
        let result = json!({"names": names, "removed": freed.removed, "bytes": freed.bytes});
        return print([printable(&result.to_string())]);
    }
    let names = names.iter().map(|name| format!("{verb}: {}", plain(name)));
    let removed = freed.removed.iter().map(|content| format!("Deleted: {content}"));
    let total = format!("Total reclaimed space: {}", quantity::shown(freed.bytes));
    print(names.chain(removed).chain([total]))
}

fn ago(time: Duration) -> String {
    let seconds = time.as_secs();
    let (count, unit) = match seconds {
        0..60 => return "less than a minute ago".into(),
        60..3600 => (seconds / 60, "minute"),
        3600..86400 => (seconds / 3600, "hour"),
        _ => (seconds / 86400, "day"),
    };
    format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
}

fn short(digest: &str) -> String {
    digest.strip_prefix("sha256:").unwrap_or(digest).chars().take(SHORT).collect()
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Escapes in JSON what controls a terminal and JSON permits.
fn printable(json: &str) -> String {
    let escape = |c: char| match c {
        '\u{7f}'..='\u{9f}' => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    json.chars().map(escape).collect()
}

/// A name of a folder that another process writes is no control sequence of a terminal.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_down() {
        for (seconds, shown) in [
            (59, "less than a minute ago"),
            (60, "1 minute ago"),
            (7300, "2 hours ago"),
            (90_000, "1 day ago"),
        ] {
            assert_eq!(ago(Duration::from_secs(seconds)), shown);
        }
    }

    fn image(name: &str, digit: &str) -> Listed {
        Listed {
            names: vec![name.to_owned()],
            digest: format!("sha256:{}", digit.repeat(64)),
            pulled: format!("sha256:{}", if digit == "a" { "e" } else { "f" }.repeat(64)),
            folder: "/pulled".into(),
            size: 0,
            config_digest: String::new(),
            created: None,
            platform: String::new(),
            layers: Vec::new(),
            last_used: None,
            users: Vec::new(),
            problem: None,
        }
    }

    #[test]
    fn names_of_the_process_that_pulls_for_pods_replace_none() {
        let of_pods = |name: &str| Listed { folder: "/x/pulled-for-pods".into(), ..image(name, "b") };
        let digest = format!("ghcr.io/org/app@sha256:{}", "b".repeat(64));
        let forged = [
            "docker.io/library/python:3".to_owned(),
            forged_name(&digest),
            "docker.io/library/python:4".to_owned(),
            digest.clone(),
        ];
        let mut images = forged.map(|name| of_pods(&name)).to_vec();
        images.push(image("docker.io/library/python:3", "a"));
        let found = |text: &str| find(&images, text).ok().map(|(image, _)| image.digest[7..8].to_owned());
        assert_eq!(found("python:3").as_deref(), Some("a"));
        assert_eq!(found("python:4"), None);
        assert_eq!(found(&forged_name(&digest)), None);
        assert_eq!(found(&digest).as_deref(), Some("b"));
        assert_eq!(trusted(&of_pods("docker.io/library/python:4")).next(), None);
    }

    fn forged_name(digest: &str) -> String {
        digest.replace("bbbb", "aaaa")
    }

    #[test]
    fn control_characters_are_escaped_in_json() {
        let json = printable(&json!({"name": "a\u{9b}31m\u{7f}\u{1b}é"}).to_string());
        assert_eq!(json, r#"{"name":"a\u009b31m\u007f\u001bé"}"#);
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["name"], "a\u{9b}31m\u{7f}\u{1b}é");
    }

    #[test]
    fn image_is_found_by_name_and_by_digits() {
        let images = [image("docker.io/library/python:3", "a"), image("ghcr.io/org/app:v1", "b")];
        let found =
            |text: &str| find(&images, text).ok().map(|(image, names)| (&image.digest[7..8], names.len()));
        assert_eq!(found("python:3"), Some(("a", 1)));
        assert_eq!(found("bbbb"), Some(("b", 0)));
        assert_eq!(found(&format!("sha256:{}", "a".repeat(64))), Some(("a", 0)));
        assert_eq!(found(&format!("ghcr.io/org/app@sha256:{}", "f".repeat(64))), Some(("b", 0)));
        assert_eq!(found(&format!("sha256:{}", "e".repeat(64))), Some(("a", 0)), "digest of an index");
        for missing in ["python", "aaa", "cccc", "", "sha256:", "docker.io/x@sha256:ff"] {
            assert_eq!(found(missing), None, "{missing}");
        }
    }
}
