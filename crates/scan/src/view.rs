//! Views: readings of the same bytes, each with a map back to the bytes.

use std::borrow::Cow;
use std::ops::Range;

use crate::finding::Step;

/// Decoded pieces with fewer bytes between them count as one.
const GAP: usize = 8;

/// Part of a view and the bytes it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    view: Range<usize>,
    root: Range<usize>,
    /// The bytes differ from the root's; otherwise they are copied as context.
    decoded: bool,
}

/// One reading of the bytes.
#[derive(Debug, Clone)]
pub(crate) struct View<'a> {
    pub(crate) bytes: Cow<'a, [u8]>,
    /// Steps from the root to this view.
    pub(crate) steps: Vec<Step>,
    /// Empty for the root itself.
    pieces: Vec<Piece>,
    /// The view has no map: every match covers this range.
    fixed: Option<Range<usize>>,
}

impl<'a> View<'a> {
    /// Returns the view of the bytes themselves.
    pub(crate) fn root(bytes: &'a [u8]) -> View<'a> {
        View { bytes: Cow::Borrowed(bytes), steps: Vec::new(), pieces: Vec::new(), fixed: None }
    }

    /// Returns the view as the result of a step.
    pub(crate) fn after(self, step: Step) -> View<'a> {
        View { steps: vec![step], ..self }
    }

    /// Returns a view of other bytes, all of which come from one range of the root.
    pub(crate) fn fixed(bytes: impl Into<Cow<'a, [u8]>>, steps: Vec<Step>, range: Range<usize>) -> View<'a> {
        View { bytes: bytes.into(), steps, pieces: Vec::new(), fixed: Some(range) }
    }

    /// Returns the bytes of the root from which a range of this view comes.
    pub(crate) fn origin(&self, range: &Range<usize>) -> Range<usize> {
        if let Some(fixed) = &self.fixed {
            return fixed.clone();
        }
        if self.pieces.is_empty() {
            return range.clone();
        }
        let (mut start, mut end) = (usize::MAX, 0);
        for piece in self.touched(range) {
            // A copy of bytes that the parent decoded has no map of its own.
            match piece.decoded || piece.view.len() != piece.root.len() {
                true => (start, end) = (start.min(piece.root.start), end.max(piece.root.end)),
                false => {
                    let from = range.start.max(piece.view.start) - piece.view.start;
                    let to = range.end.min(piece.view.end) - piece.view.start;
                    start = start.min(piece.root.start + from);
                    end = end.max(piece.root.start + to);
                }
            }
        }
        start.min(end)..end
    }

    /// Returns where a range of this view is in the text, compressed texts decompressed. `None` if that is not known.
    pub(crate) fn place(&self, range: &Range<usize>) -> Option<u64> {
        match (&self.fixed, self.pieces.is_empty()) {
            (None, _) => Some(self.origin(range).start as u64),
            (Some(_), true) if self.steps.len() == 1 => Some(range.start as u64),
            // Inside of something that is itself a part of the text.
            (Some(_), _) => None,
        }
    }

    /// Reports whether a range holds decoded bytes: a match in copied context alone is one of the parent's.
    pub(crate) fn is_new(&self, range: &Range<usize>) -> bool {
        self.pieces.is_empty() || self.touched(range).any(|piece| piece.decoded)
    }

    fn touched(&self, range: &Range<usize>) -> impl Iterator<Item = &Piece> {
        let first = self.pieces.partition_point(|piece| piece.view.end <= range.start);
        let end = range.end;
        self.pieces[first..].iter().take_while(move |piece| piece.view.start < end)
    }
}

/// Builds a view from parts of another one.
pub(crate) struct Builder<'p, 'a> {
    parent: &'p View<'a>,
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
}

impl<'p, 'a> Builder<'p, 'a> {
    pub(crate) fn new(parent: &'p View<'a>) -> Builder<'p, 'a> {
        Builder { parent, bytes: Vec::new(), pieces: Vec::new() }
    }

    /// Copies a range of the parent as context.
    pub(crate) fn copy(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&self.parent.bytes[range.clone()]);
        let view = start..self.bytes.len();
        let root = self.parent.origin(&range);
        self.pieces.push(Piece { view, root, decoded: false });
    }

    /// Adds what a range of the parent decodes to.
    pub(crate) fn decoded(&mut self, range: Range<usize>, bytes: &[u8]) {
        self.decoded_parts(range, [bytes]);
    }

    /// Adds the parts of what a range of the parent decodes to.
    pub(crate) fn decoded_parts<'b>(
        &mut self,
        range: Range<usize>,
        parts: impl IntoIterator<Item = &'b [u8]>,
    ) {
        let root = self.parent.origin(&range);
        let start = self.bytes.len();
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.piece(start, root);
    }

    fn piece(&mut self, start: usize, root: Range<usize>) {
        let view = start..self.bytes.len();
        // Many small pieces next to each other are one, so that a map stays smaller than its view.
        if let [.., before, between] = self.pieces.as_mut_slice()
            && before.decoded
            && !between.decoded
            && between.view.len() <= GAP
            && before.view.end == between.view.start
            && between.view.end == view.start
            && before.root.end <= root.start
        {
            before.view.end = view.end;
            before.root.end = root.end;
            self.pieces.pop();
            return;
        }
        if let Some(before) = self.pieces.last_mut()
            && before.decoded
            && before.view.end == view.start
            && before.root.end <= root.start
            && root.start - before.root.end <= GAP
        {
            before.view.end = view.end;
            before.root.end = root.end;
            return;
        }
        self.pieces.push(Piece { view, root, decoded: true });
    }

    /// Ends a part: no match continues across.
    pub(crate) fn separate(&mut self) {
        self.bytes.push(b'\n');
    }

    /// Returns the view; `None` if nothing was decoded.
    pub(crate) fn finish(self, step: Step) -> Option<View<'static>> {
        if !self.pieces.iter().any(|piece| piece.decoded) {
            return None;
        }
        let mut steps = self.parent.steps.clone();
        steps.push(step);
        let bytes = Cow::Owned(self.bytes);
        Some(View { bytes, steps, pieces: self.pieces, fixed: self.parent.fixed.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn match_maps_to_the_bytes_it_comes_from() {
        let root = View::root(b"key=QUJD;x");
        let mut builder = Builder::new(&root);
        builder.copy(0..4);
        builder.decoded(4..8, b"ABC");
        builder.copy(8..10);
        let view = builder.finish(Step::Base64).unwrap();
        assert_eq!(view.bytes.as_ref(), b"key=ABC;x");
        assert_eq!(view.origin(&(0..2)), 0..2);
        assert_eq!(view.origin(&(2..6)), 2..8);
        assert_eq!(view.origin(&(7..9)), 8..10);
        assert!(view.is_new(&(3..5)) && !view.is_new(&(0..4)) && !view.is_new(&(7..9)));
    }
}
