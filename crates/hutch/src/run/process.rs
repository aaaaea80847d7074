//! The process of a command: its arguments, environment and working directory.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use hutch_image::Resolved;
use hutch_jail::{Process, User};

use super::workspace::Workspace;
use crate::cli::RunArguments;

/// Takes the command of the image where the caller names none. Returns the working directory of such a command, unless that is
/// the folder of `--workspace`.
pub(super) fn complete(arguments: &mut RunArguments, image: &Resolved) -> anyhow::Result<Option<PathBuf>> {
    if !arguments.command.is_empty() {
        return Ok(None);
    }
    let (config, name) = (&image.config, &arguments.image);
    ensure!(!image.wants_sandboxd, "--image {name}: its own command runs in Pods only: add -- COMMAND");
    let command = [&config.entrypoint[..], &config.cmd].concat();
    ensure!(
        command.first().is_some_and(|program| !program.is_empty()),
        "--image {name}: the image names no command: add -- COMMAND"
    );
    arguments.command = command;
    let folder = config.working_dir.clone().unwrap_or_else(|| "/".into());
    Ok(Some(folder).filter(|_| arguments.workspace.is_none()))
}

/// Returns the process; `folder` is its working directory if that is not the workspace.
pub(super) fn process(
    arguments: &RunArguments,
    image: &Resolved,
    workspace: &Workspace,
    folder: Option<PathBuf>,
    tools: &[(String, String)],
    user: User,
) -> anyhow::Result<Process> {
    let config = &image.config;
    let mut env =
        vec![("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned())];
    let home = workspace.home(arguments.read_only).to_str();
    env.push(("HOME".to_owned(), home.context("--workspace: its path is not UTF-8")?.to_owned()));
    if let Some(term) = std::env::var_os("TERM").and_then(|term| term.into_string().ok()) {
        env.push(("TERM".to_owned(), term));
    }
    for (name, value) in config.env.iter().chain(tools).chain(&arguments.env) {
        env.retain(|(other, _)| other != name);
        env.push((name.clone(), value.clone()));
    }
    let cwd = folder.unwrap_or_else(|| workspace.path.clone());
    // The jail detects a terminal by itself.
    Ok(Process { argv: arguments.command.clone(), env, cwd, terminal: false, user })
}
