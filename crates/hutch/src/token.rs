//! `hutch token create`: a token that opens one Sandbox through a router in mode `scoped-token`.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use hutch_router::Claims;

use crate::cli::{TokenArguments, TokenCommand, TokenCreateArguments};

/// Prints the token alone on standard output.
pub(crate) fn main(arguments: &TokenArguments) -> ExitCode {
    let TokenCommand::Create(create) = &arguments.command;
    match token(create) {
        Ok(token) => {
            println!("{token}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("hutch token create: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn token(arguments: &TokenCreateArguments) -> anyhow::Result<String> {
    let key = crate::router::key(&arguments.key_file, "--key-file")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    let end = now.checked_add(arguments.ttl).context("--ttl: that is beyond the end of time")?;
    let claims = Claims {
        ns: arguments.namespace.clone(),
        name: arguments.sandbox.clone(),
        exp: end.as_secs(),
        uid: arguments.uid.clone(),
    };
    Ok(key.mint(&claims)?)
}
