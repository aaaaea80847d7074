//! `--tools`: the caller's toolchains, read-only.
//!
//! Only programs are shown, no credentials: of cargo's folder, for instance, only `bin`.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::mount::MountArgument;

/// Folders of toolchains: the variable that names the folder, its default below HOME, and the part that is shown.
const TOOLCHAINS: [(&str, &str, &str); 7] = [
    ("RUSTUP_HOME", ".rustup", ""),
    ("CARGO_HOME", ".cargo", "bin"),
    ("NVM_DIR", ".nvm", ""),
    ("PYENV_ROOT", ".pyenv", ""),
    ("", ".local/share/uv", "python"),
    ("", ".local/share/uv", "tools"),
    ("", ".local/bin", "uv"),
];
/// Files in them that can have passwords of registries: below each folder in the first, the second.
const SECRETS: [(&str, &str); 3] =
    [("versions/node", "etc/npmrc"), ("versions", "pip.conf"), ("", "pip.conf")];
/// Variables that the tools need inside, because HOME is another one there.
const NEEDED: [&str; 3] = ["RUSTUP_HOME", "NVM_DIR", "PYENV_ROOT"];
/// Folder whose programs every jail shows.
const SHOWN: &str = "/usr";

/// The toolchains of a caller.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tools {
    pub(super) mounts: Vec<MountArgument>,
    /// Variables, with the PATH of the caller as far as it is visible.
    pub(super) env: Vec<(String, String)>,
}

impl Tools {
    /// Returns those that exist. `variable` reads the environment of the caller. What is in the workspace is shown already.
    pub(super) fn find(variable: impl Fn(&str) -> Option<OsString>, workspace: &Path) -> Tools {
        let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = absolute("HOME");
        let (mut shown, mut env) = (Vec::new(), Vec::new());
        for (name, default, part) in TOOLCHAINS {
            let folder = match absolute(name) {
                Some(folder) => folder,
                None => match &home {
                    Some(home) => home.join(default),
                    None => continue,
                },
            };
            let path = if part.is_empty() { folder.clone() } else { folder.join(part) };
            // A link is not followed: code of an earlier run may have made it.
            let is_there = path.symlink_metadata().is_ok_and(|found| !found.is_symlink());
            if !is_there || path.starts_with(SHOWN) {
                continue;
            }
            if let (true, Some(text)) = (NEEDED.contains(&name), folder.to_str()) {
                env.push((name.to_owned(), text.to_owned()));
            }
            shown.push(path);
        }
        let path = variable("PATH").unwrap_or_default();
        let folders: Vec<PathBuf> =
            std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect();
        shown.extend(go_outside(&folders, &shown, workspace));
        let is_shown = |folder: &Path| {
            folder.starts_with(SHOWN)
                || ["/bin", "/sbin"].iter().any(|link| folder == Path::new(link))
                // A single program is shown by its own path.
                || shown.iter().any(|path| folder.starts_with(path) || path.parent() == Some(folder))
        };
        let folders: Vec<&str> =
            folders.iter().filter(|folder| is_shown(folder)).filter_map(|folder| folder.to_str()).collect();
        if !folders.is_empty() {
            env.push(("PATH".to_owned(), folders.join(":")));
        }
        let mount = |source| MountArgument { source, target: None, read_only: true };
        let elsewhere = shown.into_iter().filter(|path| !path.starts_with(workspace));
        Tools { mounts: elsewhere.map(mount).collect(), env }
    }
}

/// Returns the files with passwords that toolchains show.
pub(super) fn secrets(mounts: &[MountArgument]) -> Vec<PathBuf> {
    let of = |folder: &Path| {
        let found = SECRETS.iter().flat_map(|(below, file)| {
            let entries = std::fs::read_dir(folder.join(below)).into_iter().flatten().flatten();
            entries.map(move |entry| entry.path().join(file))
        });
        found.filter(|file| file.symlink_metadata().is_ok()).collect::<Vec<_>>()
    };
    mounts.iter().flat_map(|mount| of(&mount.source)).collect()
}

/// Returns the remedy for a program that was not found inside, if the caller's PATH has it and `--tools` would show it.
pub(super) fn remedy(
    variable: impl Fn(&str) -> Option<OsString>,
    workspace: &Path,
    program: &str,
) -> Option<&'static str> {
    let path = variable("PATH")?;
    let found =
        std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())?;
    let found = [found.canonicalize().ok()?, found];
    let tools = Tools::find(variable, workspace);
    let shown = |mount: &MountArgument| found.iter().any(|file| file.starts_with(&mount.source));
    tools.mounts.iter().any(shown).then_some("--tools shows the caller's toolchains")
}

/// Returns true if toolchains are in a home folder that this user cannot enter: inside, it has the same permissions.
pub(super) fn out_of_reach(mounts: &[MountArgument], home: &Path, uid: u32) -> bool {
    let closed = |found: std::fs::Metadata| found.uid() != uid && found.mode() & 0o001 == 0;
    let is_closed = home.metadata().is_ok_and(closed);
    is_closed && mounts.iter().any(|mount| mount.source.starts_with(home))
}

/// Returns the folder of Go, if it is not shown already.
fn go_outside(folders: &[PathBuf], shown: &[PathBuf], workspace: &Path) -> Option<PathBuf> {
    let root_of = |folder: &PathBuf| {
        let program = folder.join("go").canonicalize().ok()?;
        let root = program.parent()?.parent()?.to_owned();
        // A link may lead to any program, above which there may be a folder of the caller. Code inside can put one into the
        // workspace, such as into a virtual environment.
        let is_go = program == root.join("bin/go")
            && root.join("VERSION").is_file()
            && root.join("pkg").is_dir()
            && root.join("src").is_dir();
        let is_led_out = folder.starts_with(workspace) && !root.starts_with(workspace);
        (is_go && !is_led_out).then_some(root)
    };
    let root = folders.iter().find_map(root_of)?;
    let is_shown = root.starts_with(SHOWN) || shown.iter().any(|path| root.starts_with(path));
    (!is_shown).then_some(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// npm, which a Node of nvm has, and pip keep passwords beside their programs.
    #[test]
    fn passwords_of_registries_in_toolchains_are_found() {
        let home = tempfile::tempdir().unwrap();
        let files =
            ["nvm/versions/node/v1/etc/npmrc", "pyenv/versions/3.1/pip.conf", "uv/python/3.2/pip.conf"];
        for file in files {
            std::fs::create_dir_all(home.path().join(file).parent().unwrap()).unwrap();
            std::fs::write(home.path().join(file), "").unwrap();
        }
        let mount =
            |name: &str| MountArgument { source: home.path().join(name), target: None, read_only: true };
        let mut found = secrets(&[mount("nvm"), mount("pyenv"), mount("uv/python"), mount("missing")]);
        found.sort();
        assert_eq!(found, files.map(|file| home.path().join(file)));
    }

    #[test]
    fn toolchains_are_shown_without_credentials() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        for folder in
            [".rustup/toolchains", ".cargo/bin", ".local/bin", "sdk/go/bin", "sdk/go/src", "sdk/go/pkg"]
        {
            std::fs::create_dir_all(home.join(folder)).unwrap();
        }
        let files = [
            ".cargo/credentials.toml",
            ".local/bin/uv",
            ".local/bin/other",
            "sdk/go/bin/go",
            "sdk/go/VERSION",
        ];
        for file in files {
            std::fs::write(home.join(file), "").unwrap();
        }
        let at = |path: &str| home.join(path).display().to_string();
        let path = [
            at(".cargo/bin"),
            at("bin"),
            at(".local/bin"),
            at("sdk/go/bin"),
            "/usr/bin".into(),
            "/opt/x".into(),
        ];
        let path = path.join(":");
        let variable = |name: &str| match name {
            "HOME" => Some(home.clone().into()),
            "PATH" => Some(path.clone().into()),
            _ => None,
        };
        let tools = Tools::find(variable, Path::new("/work"));
        let inside = Tools::find(variable, &home);
        assert_eq!((inside.mounts.len(), &inside.env), (0, &tools.env), "in the workspace already");
        let shown: Vec<String> =
            tools.mounts.iter().map(|mount| mount.source.display().to_string()).collect();
        assert_eq!(shown, [at(".rustup"), at(".cargo/bin"), at(".local/bin/uv"), at("sdk/go")]);
        assert!(tools.mounts.iter().all(|mount| mount.read_only && mount.target.is_none()));
        let path = [at(".cargo/bin"), at(".local/bin"), at("sdk/go/bin"), "/usr/bin".into()].join(":");
        assert_eq!(tools.env, [("RUSTUP_HOME".to_owned(), at(".rustup")), ("PATH".to_owned(), path)]);
        assert_eq!(Tools::find(|_| None, Path::new("/work")), Tools::default());
        // Found by review: a link that code of an earlier run had put into a folder of PATH showed what is above its target.
        for folder in ["other/cmd", "other/pkg", "other/src", "bin", "work/bin"] {
            std::fs::create_dir_all(home.join(folder)).unwrap();
        }
        for file in ["other/cmd/main.go", "other/VERSION"] {
            std::fs::write(home.join(file), "").unwrap();
        }
        std::os::unix::fs::symlink(home.join("other/cmd/main.go"), home.join("bin/go")).unwrap();
        std::os::unix::fs::symlink(home.join("sdk/go/bin/go"), home.join("work/bin/go")).unwrap();
        let go = |folder: &str| {
            let path = at(folder);
            let variable = |name: &str| (name == "PATH").then(|| path.clone().into());
            Tools::find(variable, &home.join("work")).mounts.len()
        };
        assert_eq!((go("bin"), go("work/bin"), go("sdk/go/bin")), (0, 0, 1));
    }
}
