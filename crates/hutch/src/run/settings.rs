//! `--settings`: settings of Anthropic's sandbox-runtime (`srt`), as flags of `hutch run`.
//!
//! srt shows the whole machine and takes parts away. A jail shows only what is mounted: here the working directory, which
//! is the workspace, and the folders that `allowRead` and `allowWrite` name.

mod pattern;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use self::pattern::{Pattern, is_pattern};
use super::caches;
use super::printed::Printed;
use super::report::print_error;
use super::tools::Tools;
use super::workspace::TEMPORARY;
use crate::cli::{Listed, RunArguments};
use crate::mount::MountArgument;
use crate::paths::absolute;
use crate::policy::import::srt::credentials::checked;
use crate::policy::import::srt::{Filesystem, Settings};
use crate::policy::import::{Notes, read_file};
use crate::protect::is_protected;

/// Folders of the image, which are shown anyway.
const OF_THE_IMAGE: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// Lists whose paths may have wildcards.
const PATTERNS: &str = "filesystem.denyRead";
const CREDENTIALS: &str = "credentials.files";
/// Beginning and end of a certificate.
const CERTIFICATE: [&str; 2] = ["-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"];

/// Puts what a file says into the flags, of which it allows none that say the same.
pub(super) fn apply(file: &Path, arguments: &mut RunArguments) -> anyhow::Result<()> {
    let named = || format!("--settings {}", file.display());
    let mut notes = Notes::default();
    let text = read_file(file).with_context(named)?;
    let settings = Settings::parse(&text, &mut notes).with_context(named)?;
    let rules = settings.egress(&mut notes);
    let offered = settings.offered(|name| std::env::var_os(name).is_some(), &mut notes);
    let upstream = settings.network.parent.as_ref();
    if upstream.is_some() && rules.is_empty() && arguments.policy.is_empty() {
        notes.changes.push("network.parentProxy: no effect: no domain is allowed".to_owned());
    } else if let Some(upstream) = upstream {
        ensure!(
            arguments.upstream_proxy.is_none(),
            "{}: network.parentProxy: not together with --upstream-proxy",
            named()
        );
        arguments.upstream_proxy = Some(upstream.clone());
    }
    notes.refused().with_context(named)?;
    let credentials = checked(&rules, offered).with_context(named)?;
    for name in &settings.credentials.deny_variables {
        let is_set = arguments.env.iter().any(|(other, _)| other == name);
        ensure!(!is_set, "{}: credentials.envVars: --env sets {name}, which is denied", named());
    }
    if Printed::of_caller().is_new("settings-files") {
        print_error(format_args!("--settings: {SHOWN}"));
    }
    notes.changes.iter().for_each(|line| print_error(format_args!("{}: {line}", named())));
    for (number, folder) in settings.safe_directories.iter().enumerate() {
        arguments.env.push((format!("GIT_CONFIG_KEY_{number}"), "safe.directory".to_owned()));
        arguments.env.push((format!("GIT_CONFIG_VALUE_{number}"), folder.clone()));
        let count = (number + 1).to_string();
        arguments.env.retain(|(name, _)| name != "GIT_CONFIG_COUNT");
        arguments.env.push(("GIT_CONFIG_COUNT".to_owned(), count));
    }
    let place = Place {
        workspace: std::env::current_dir().context("the working directory")?,
        home: std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()),
    };
    let files = settings.network.terminate.as_ref().map_or(&[][..], |terminate| &terminate.authorities);
    let authorities = place.authorities(files).with_context(named)?;
    let listed = Listed { rules: Some(rules), credentials, authorities, ..Listed::default() };
    let denied = &settings.credentials.deny_files;
    arguments.listed =
        Some(Box::new(place.apply(&settings.filesystem, denied, listed, arguments).with_context(named)?));
    Ok(())
}

/// Difference that is printed once.
const SHOWN: &str = "the command sees /usr, the working directory, and the paths of allowRead and allowWrite, where srt shows \
                     the whole machine (\"Settings of srt\" in docs/cli.md)";

/// Folders to which the paths of the settings refer.
struct Place {
    workspace: PathBuf,
    home: Option<PathBuf>,
}

/// A path of the settings.
struct Named {
    /// Its list and its number there.
    field: String,
    /// Absolute, without `.` and `..`. In `denyRead` it may have wildcards.
    path: PathBuf,
    /// True if it was written as a folder.
    folder: bool,
    /// True if it matches a pattern.
    matches: bool,
}

impl Place {
    /// Returns the certificates in these files. As in srt, one without a certificate is left out, also if it does not exist.
    fn authorities(&self, files: &[String]) -> anyhow::Result<Vec<u8>> {
        let mut all = String::new();
        for (index, text) in files.iter().enumerate() {
            let field = format!("network.tlsTerminate.extraCaCertPaths[{index}]");
            let named = self.named(field, text)?;
            let (field, path) = (named.field, named.path.display());
            match read_file(&named.path).map(|text| certificates(&text)) {
                Ok(found) if found.is_empty() => {
                    print_error(format_args!("--settings: {field}: {path} has no certificate"));
                }
                Ok(found) => all.push_str(&found),
                Err(error) => print_error(format_args!("--settings: {field}: {path}: {error}")),
            }
        }
        Ok(all.into_bytes())
    }

    /// Adds the rules for files to the flags and to `listed`.
    fn apply(
        &self,
        files: &Filesystem,
        denied: &[String],
        mut listed: Listed,
        arguments: &mut RunArguments,
    ) -> anyhow::Result<Listed> {
        let list = |name: &str, texts: &[String]| {
            let named =
                |(index, text): (usize, &String)| self.named(format!("filesystem.{name}[{index}]"), text);
            texts.iter().enumerate().map(named).collect::<anyhow::Result<Vec<Named>>>()
        };
        let (mut deny_read, allow_read) =
            (list("denyRead", &files.deny_read)?, list("allowRead", &files.allow_read)?);
        for (index, text) in denied.iter().enumerate() {
            deny_read.push(self.named(format!("{CREDENTIALS}[{index}]"), text)?);
        }
        let (allow_write, deny_write) =
            (list("allowWrite", &files.allow_write)?, list("denyWrite", &files.deny_write)?);
        arguments.workspace = Some(self.workspace.clone());
        for mount in &mut arguments.mount {
            mount.source = absolute(&mount.source).context("--mount")?;
        }
        let is_allowed = allow_write.iter().any(|named| named.path == self.workspace);
        let is_above = |name: PathBuf| self.workspace.starts_with(name);
        let is_denied = deny_write.iter().any(|named| super::every_name(named.path.clone()).any(is_above));
        arguments.read_only = is_denied || !is_allowed;
        listed.write_within = self.writable(&allow_write, &deny_write, arguments)?;
        self.readable(&allow_read, arguments)?;
        let shown_again: Vec<&Named> = allow_read.iter().chain(&allow_write).collect();
        let shown = self.shown(arguments);
        let deny_read = self.expanded(deny_read, &shown)?;
        listed.deny_matching = self.hidden(&deny_read, &shown_again, &shown, arguments)?;
        if files.allow_git_config && !arguments.read_only {
            arguments.allow_write.push(".git/config".into());
        }
        listed.deny_write = deny_write.into_iter().map(|named| (named.path, named.folder)).collect();
        Ok(listed)
    }

    /// Returns a path without `~`, relative parts and a last `/**`.
    fn named(&self, field: String, text: &str) -> anyhow::Result<Named> {
        let plain = text.strip_suffix("/**").unwrap_or(text);
        ensure!(
            !is_pattern(plain) || field.starts_with(PATTERNS) || field.starts_with(CREDENTIALS),
            "{field}: `{}` is a pattern; name files and folders",
            text.escape_debug()
        );
        ensure!(!plain.is_empty() && !plain.contains('\0'), "{field}: not a path");
        let from_home = match plain {
            "~" => Some(""),
            _ => plain.strip_prefix("~/"),
        };
        let whole = match (from_home, &self.home) {
            (Some(rest), Some(home)) => home.join(rest),
            (Some(_), None) => bail!("{field}: HOME is not set"),
            (None, _) => self.workspace.join(plain),
        };
        let path = absolute(&whole).with_context(|| field.clone())?;
        // The working directory is known without a link below `/`.
        let path = super::below_root(&path);
        Ok(Named { field, path, folder: plain.ends_with('/') || plain != text, matches: false })
    }

    /// Shows the paths that can be written, beside the workspace. Returns those in a read-only workspace.
    fn writable(
        &self,
        allow: &[Named],
        deny: &[Named],
        arguments: &mut RunArguments,
    ) -> anyhow::Result<Vec<PathBuf>> {
        let mut within = Vec::new();
        let deny: Vec<PathBuf> =
            deny.iter().flat_map(|named| super::every_name(named.path.clone())).collect();
        for named in allow {
            let path = &named.path;
            let is_denied = |name: PathBuf| deny.iter().any(|denied| name.starts_with(denied));
            let denied = super::every_name(path.clone()).any(is_denied);
            let is_there = path.symlink_metadata().is_ok();
            if *path == self.workspace || is_own(path) || (denied && path.starts_with(&self.workspace)) {
                continue;
            }
            ensure!(
                !self.workspace.starts_with(path),
                "{}: {} is above the working directory; start in it, or name `.`",
                named.field,
                path.display()
            );
            if !is_there {
                print_error(format_args!("--settings: {}: {} does not exist", named.field, path.display()));
            } else if !path.starts_with(&self.workspace) {
                arguments.mount.push(MountArgument { source: path.clone(), target: None, read_only: denied });
            } else if arguments.read_only {
                let rest = path.strip_prefix(&self.workspace).unwrap_or(path);
                ensure!(
                    !is_protected(rest, super::guard::is_home(&self.workspace)),
                    "{}: programs of this machine run {}, so it stays protected; name what is to be written beside it",
                    named.field,
                    path.display()
                );
                within.push(path.clone());
            }
        }
        Ok(within)
    }

    /// Shows the folders that can only be read.
    fn readable(&self, allow: &[Named], arguments: &mut RunArguments) -> anyhow::Result<()> {
        for named in allow {
            let path = &named.path;
            let is_above = self.workspace.starts_with(path);
            let within = |above: &Path| path.starts_with(above);
            let shown = within(&self.workspace)
                || is_own(path)
                || OF_THE_IMAGE.iter().any(|own| within(Path::new(own)));
            let writable = arguments.mount.iter().any(|mount| within(&mount.source));
            if is_above || shown || writable || path.symlink_metadata().is_err() {
                continue;
            }
            if let Some(mount) = arguments.mount.iter().find(|mount| mount.source.starts_with(path)) {
                bail!(
                    "{}: {} is above {}, which is shown too; name the folders that are needed",
                    named.field,
                    path.display(),
                    mount.source.display()
                );
            }
            arguments.mount.push(MountArgument { source: path.clone(), target: None, read_only: true });
        }
        Ok(())
    }

    /// Returns the folders that are shown beside the workspace and the image.
    fn shown(&self, arguments: &RunArguments) -> Vec<PathBuf> {
        let mut shown: Vec<PathBuf> = arguments.mount.iter().map(|mount| mount.source.clone()).collect();
        if arguments.tools {
            let variable = |name: &str| std::env::var_os(name);
            let tools = Tools::find(variable, &self.workspace).mounts;
            shown.extend(tools.into_iter().map(|mount| mount.source));
            shown.extend(caches::folders(variable).into_iter().filter(|folder| folder.exists()));
        }
        // As the rules are written, which are compared with them.
        let plain = |path: PathBuf| absolute(&path).map(|path| super::below_root(&path)).unwrap_or(path);
        shown.into_iter().map(plain).collect()
    }

    /// Replaces patterns by the paths that match in what is shown.
    fn expanded(&self, list: Vec<Named>, shown: &[PathBuf]) -> anyhow::Result<Vec<Named>> {
        let of_the_image = OF_THE_IMAGE.iter().map(PathBuf::from);
        let shown: Vec<PathBuf> = std::iter::once(self.workspace.clone())
            .chain(shown.iter().cloned())
            .chain(of_the_image)
            .collect();
        let mut all = Vec::new();
        for named in list {
            if !named.path.to_str().is_some_and(is_pattern) {
                all.push(named);
                continue;
            }
            let found = Pattern::new(&named.path).expand(&shown).with_context(|| named.field.clone())?;
            all.extend(found.into_iter().map(|path| Named {
                field: named.field.clone(),
                path,
                folder: false,
                matches: true,
            }));
        }
        Ok(all)
    }

    /// Hides what is denied, but for what is shown again. Returns what matches patterns.
    fn hidden(
        &self,
        deny: &[Named],
        again: &[&Named],
        further: &[PathBuf],
        arguments: &mut RunArguments,
    ) -> anyhow::Result<Vec<PathBuf>> {
        let mut matching = Vec::new();
        for named in deny {
            let path = &named.path;
            let below: Vec<&&Named> = again.iter().filter(|again| again.path.starts_with(path)).collect();
            let shown = |above: &Path| path.starts_with(above);
            let is_mounted = further.iter().any(|folder| shown(folder));
            if let Some(again) = below.first().filter(|_| named.field.starts_with(CREDENTIALS)) {
                bail!(
                    "{}: {} would show {} again, which is denied as a credential; remove one of them",
                    again.field,
                    again.path.display(),
                    path.display()
                );
            }
            if below.iter().any(|again| again.path == *path)
                || path.symlink_metadata().is_err_and(|error| super::is_missing(&error))
            {
                continue;
            }
            if self.workspace.starts_with(path) {
                ensure!(
                    below.iter().any(|again| self.workspace.starts_with(&again.path)),
                    "{}: the working directory is in {}; add `.` to filesystem.allowRead",
                    named.field,
                    path.display()
                );
                continue;
            }
            match below.first() {
                Some(again)
                    if is_mounted
                        || shown(&self.workspace)
                        || OF_THE_IMAGE.iter().any(|own| shown(Path::new(own))) =>
                {
                    bail!(
                        "{}: {} is in {}, which {} hides; name what is to be hidden in it",
                        again.field,
                        again.path.display(),
                        path.display(),
                        named.field
                    )
                }
                // What is shown again is there, and what flags show, which is hidden.
                Some(_) => {
                    let is_again = |folder: &Path| below.iter().any(|again| folder.starts_with(&again.path));
                    let others =
                        further.iter().filter(|folder| folder.starts_with(path) && !is_again(folder));
                    arguments.deny_read.extend(others.cloned());
                }
                None if named.matches => matching.push(path.clone()),
                None => arguments.deny_read.push(path.clone()),
            }
        }
        Ok(matching)
    }
}

/// Returns the certificates of a text, and nothing else of it: it may have a key.
fn certificates(text: &str) -> String {
    let [begin, end] = CERTIFICATE;
    let blocks = text.split(begin).skip(1).filter_map(|rest| rest.split_once(end));
    blocks.map(|(block, _)| format!("{begin}{block}{end}\n")).collect()
}

/// Returns true for a path that every sandbox has as its own.
fn is_own(path: &Path) -> bool {
    path == Path::new(TEMPORARY) || ["/dev", "/proc", "/sys"].iter().any(|own| path.starts_with(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_certificates_of_a_file_are_taken() {
        let [begin, end] = CERTIFICATE;
        let key = "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n";
        let text = format!("{key}{begin}\none\n{end}\n{key}text{begin}\ntwo\n{end}{begin}\ncut");
        assert_eq!(certificates(&text), format!("{begin}\none\n{end}\n{begin}\ntwo\n{end}\n"));
        assert_eq!(certificates(key), "");
    }
}
