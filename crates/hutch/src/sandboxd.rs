//! `hutch sandboxd install`: runs in an init container, for the container that shares its folder.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use crate::cli::{InstallArguments, SandboxdArguments, SandboxdCommand};
use crate::programs;

/// Name of the file with the token that sandboxd demands (`SANDBOXD_TOKEN_FILE`).
const TOKEN: &str = "token";

/// Installs sandboxd and prints its path.
pub(crate) fn main(arguments: &SandboxdArguments) -> ExitCode {
    let SandboxdCommand::Install(install) = &arguments.command;
    match put(install) {
        Ok(program) => {
            println!("{}", program.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hutch sandboxd install: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn put(arguments: &InstallArguments) -> anyhow::Result<std::path::PathBuf> {
    let key =
        arguments.key_file.as_deref().map(|file| crate::router::pod_key(file, "--key-file")).transpose()?;
    let program = programs::install_sandboxd(&arguments.folder)?;
    if let (Some(key), Some(uid)) = (key, &arguments.pod_uid) {
        let file = arguments.folder.join(TOKEN);
        write(&file, &key.token(uid)).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(program)
}

/// Writes the token for all users of the container, who may use its sandboxd; the token opens nothing else. Creates a new
/// file, because that of an earlier run is read-only.
fn write(file: &Path, token: &str) -> std::io::Result<()> {
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, token)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o444))?;
    std::fs::rename(&fresh, file)
}
