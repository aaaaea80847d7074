//! `/v1/stat`, `/v1/folders`, `/v1/mode`, `/v1/move`.

use std::ffi::OsString;
use std::path::PathBuf;

use hyper::{Response, StatusCode, Uri};

use super::files::{Listed, not_below_a_file};
use super::refusal::Refusal;
use super::{Rest, empty, json, target};
use crate::answer::Body;
use crate::files::work;

const FOLDER_MODE: u32 = 0o755;

impl Rest {
    pub(super) async fn stat(&self, (path, _): (PathBuf, OsString)) -> Result<Response<Body>, Refusal> {
        let root = self.root.clone();
        let found = work::on_files(move || root.look(path)).await.map_err(not_below_a_file)?;
        Ok(json(StatusCode::OK, &Listed::from(found)))
    }

    pub(super) async fn make_folder(&self, uri: &Uri, path: PathBuf) -> Result<Response<Body>, Refusal> {
        let (mode, root) = (target::mode(uri, FOLDER_MODE)?, self.root.clone());
        work::on_files(move || root.make_folder(path, mode)).await?;
        Ok(empty(StatusCode::NO_CONTENT))
    }

    pub(super) async fn set_mode(&self, uri: &Uri, path: PathBuf) -> Result<Response<Body>, Refusal> {
        if target::parameter(uri, "mode").is_none_or(|mode| mode.is_empty()) {
            return Err(Refusal::invalid("the parameter \"mode\" is missing; it must match ^0[0-7]{3}$"));
        }
        let (mode, root) = (target::mode(uri, 0)?, self.root.clone());
        work::on_files(move || root.set_mode(path, mode)).await?;
        Ok(empty(StatusCode::NO_CONTENT))
    }

    pub(super) async fn rename(&self, uri: &Uri, from: PathBuf) -> Result<Response<Body>, Refusal> {
        let to = target::parameter(uri, "to").filter(|to| !to.is_empty());
        let to = to.ok_or_else(|| Refusal::invalid("the parameter \"to\" is missing; it is the new path"))?;
        if to.contains('\0') {
            return Err(Refusal::invalid("the parameter \"to\" holds a NUL byte"));
        }
        let (replace, to) = (target::yes(uri, "replace")?, self.root.locate(to.as_ref()));
        let root = self.root.clone();
        work::on_files(move || root.rename(from, to, replace)).await?;
        Ok(empty(StatusCode::NO_CONTENT))
    }
}
