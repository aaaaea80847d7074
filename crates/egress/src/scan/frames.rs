//! Scans the messages of one direction of a WebSocket. Frames are held until their message is whole.

use std::sync::Arc;

use hutch_scan::{At, Direction, Location, State};

use super::{Judged, Scan, SharedTalk, is_message, is_quick, scanner};
use crate::refusal::Reason;
use crate::room::{Parts, Room};
use hutch_screen::Found;

/// Maximum bytes of a message.
const MESSAGE: usize = 1 << 20;

/// Frames of one direction.
pub(crate) struct Frames {
    scan: Scan,
    talk: SharedTalk,
    direction: Direction,
    /// Joins messages that follow each other.
    state: State,
    /// Beginning of a frame.
    partial: Vec<u8>,
    /// Frames of a message that has not ended, and its content.
    held: Vec<u8>,
    content: Vec<u8>,
    room: Parts,
    /// A message could not be read where the scanner only records. The rest is passed on as it is.
    gave_up: bool,
}

/// A whole frame at the start of some bytes.
struct Frame {
    length: usize,
    /// Last one of its message.
    last: bool,
    control: bool,
    content: Vec<u8>,
}

/// Reads a frame; `None` if it has not ended.
///
/// # Errors
/// It is too long, or compressed.
fn frame(bytes: &[u8]) -> Result<Option<Frame>, ()> {
    let [first, second, ..] = bytes else { return Ok(None) };
    if first & 0x70 != 0 {
        return Err(());
    }
    let (start, length) = match second & 0x7f {
        126 => match bytes.get(2..4) {
            Some(length) => (4, length.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))),
            None => return Ok(None),
        },
        127 => match bytes.get(2..10) {
            Some(length) => (10, length.iter().fold(0, |all, byte| all << 8 | u64::from(*byte))),
            None => return Ok(None),
        },
        short => (2, u64::from(short)),
    };
    let length = usize::try_from(length).ok().filter(|length| *length <= MESSAGE).ok_or(())?;
    let mask = if second & 0x80 != 0 { 4 } else { 0 };
    let begin = start + mask;
    let Some(content) = bytes.get(begin..begin + length) else { return Ok(None) };
    let mut content = content.to_vec();
    if let Some(mask) = bytes.get(start..begin).filter(|mask| !mask.is_empty()) {
        content.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    }
    let (last, control) = (first & 0x80 != 0, first & 0x08 != 0);
    Ok(Some(Frame { length: begin + length, last, control, content }))
}

impl Frames {
    pub(crate) fn new(scan: Scan, talk: SharedTalk, direction: Direction, room: &Arc<Room>) -> Frames {
        let (partial, held, content) = (Vec::new(), Vec::new(), Vec::new());
        let state = scan.state(direction);
        let room = Parts::new(room);
        Frames { scan, talk, direction, state, partial, held, content, room, gave_up: false }
    }

    /// Takes bytes, and returns those that may be passed on. Adds what is only recorded to `recorded`.
    ///
    /// # Errors
    /// What is found.
    pub(crate) async fn pass(&mut self, bytes: &[u8], recorded: &mut Vec<Reason>) -> Result<Vec<u8>, Found> {
        if self.gave_up {
            return Ok(bytes.to_vec());
        }
        self.partial.extend_from_slice(bytes);
        let mut passed = Vec::new();
        loop {
            if !self.room.hold(self.partial.len() + self.held.len() + self.content.len()) {
                return self.unreadable(passed, recorded);
            }
            let Ok(frame) = frame(&self.partial) else { return self.unreadable(passed, recorded) };
            let Some(frame) = frame else { return Ok(passed) };
            let raw: Vec<u8> = self.partial.drain(..frame.length).collect();
            if frame.control {
                // A close begins with its code.
                self.judge(frame.content, recorded).await?;
                passed.extend(raw);
                continue;
            }
            self.held.extend(raw);
            if self.content.len() + frame.content.len() > MESSAGE {
                return self.unreadable(passed, recorded);
            }
            self.content.extend(frame.content);
            if frame.last {
                let content = std::mem::take(&mut self.content);
                self.judge(content, recorded).await?;
                passed.append(&mut self.held);
            }
        }
    }

    /// Takes a message that cannot be read. If the scanner only records, it and what follows is passed on after `passed`.
    ///
    /// # Errors
    /// The scanner blocks it.
    fn unreadable(&mut self, mut passed: Vec<u8>, recorded: &mut Vec<Reason>) -> Result<Vec<u8>, Found> {
        let found = Found::unreadable(self.direction, At::Frame);
        if self.scan.blocks(self.direction) || self.scan.protects_values(self.direction) {
            return Err(found);
        }
        recorded.push(Reason::FoundOnly(found.into()));
        self.gave_up = true;
        passed.append(&mut self.held);
        passed.append(&mut self.partial);
        self.content = Vec::new();
        self.room.hold(0);
        Ok(passed)
    }

    /// Scans the content of a message: on another thread if that takes long.
    async fn judge(&mut self, content: Vec<u8>, recorded: &mut Vec<Reason>) -> Result<(), Found> {
        if content.is_empty() {
            return Ok(());
        }
        let direction = self.direction;
        let judged = if is_quick(&content) && !self.talk.is_busy() {
            judge(&self.scan, &self.talk, direction, &mut self.state, &content)
        } else {
            let (scan, talk) = (self.scan.clone(), self.talk.clone());
            let mut state = std::mem::replace(&mut self.state, State::new(direction));
            let task = self.talk.places.run(move || {
                let judged = judge(&scan, &talk, direction, &mut state, &content);
                (state, judged)
            });
            let (state, judged) = task.await.map_err(|_| Found::unreadable(direction, At::Frame))?;
            self.state = state;
            judged
        };
        let Judged { blocked, passed, .. } = judged;
        recorded.extend(passed);
        blocked.map_or(Ok(()), Err)
    }
}

fn judge(scan: &Scan, talk: &SharedTalk, direction: Direction, state: &mut State, content: &[u8]) -> Judged {
    let findings = scanner().scan_whole(state, &Location::new(At::Frame), content);
    let mut judged = scan.refuse_redacted(direction, scan.judge(direction, findings));
    if judged.blocked.is_none() && is_message(content) != Some(false) {
        let (of_message, _) = scan.body(talk, direction, None, content);
        judged.add(scan.refuse_redacted(direction, of_message));
    }
    judged
}
