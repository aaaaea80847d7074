//! Rules for Markdown: columns of a line, lines of a paragraph, and which text is prose.

/// Columns of a line.
const COLUMNS_MAX: usize = 100;
/// Lines of a paragraph or list item.
const PARAGRAPH_LINES_MAX: usize = 6;

/// Returns the prose of a page: code blocks become empty lines, so that line numbers stay.
pub(super) fn prose(page: &str) -> String {
    let mut code = Code::default();
    let lines = page.lines().map(|line| if code.holds(line) { "" } else { line });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns a line for each breach of the layout rules.
pub(super) fn breaches(name: &str, page: &str) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut code = Code::default();
    let mut paragraph = 0;
    for (index, line) in page.lines().enumerate() {
        let number = index + 1;
        let is_code = code.holds(line);
        let length = line.chars().count();
        if length > COLUMNS_MAX && can_be_broken(line) {
            breaches.push(format!("{name}:{number}: {length} columns, at most {COLUMNS_MAX}"));
        }
        let prose = !is_code && !line.trim().is_empty() && !is_row(line) && !line.starts_with('#');
        paragraph = match (prose, is_item(line)) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => paragraph + 1,
        };
        if paragraph == PARAGRAPH_LINES_MAX + 1 {
            breaches.push(format!("{name}:{number}: a paragraph of more than {PARAGRAPH_LINES_MAX} lines"));
        }
    }
    breaches
}

/// Follows fenced and indented code blocks, line by line.
#[derive(Default)]
struct Code {
    fenced: bool,
    after_blank: bool,
    indented: bool,
    in_list: bool,
}

impl Code {
    /// Reports whether this line belongs to a code block, fences included.
    fn holds(&mut self, line: &str) -> bool {
        let fence = line.trim_start().starts_with("```");
        if fence {
            self.fenced = !self.fenced;
        }
        let blank = line.trim().is_empty();
        let indent = line.len() - line.trim_start().len();
        self.in_list = is_item(line) || self.in_list && (blank || indent > 0);
        let begins = self.after_blank && !self.in_list;
        self.indented = !blank && indent >= 4 && (self.indented || begins) || blank && self.indented;
        self.after_blank = blank;
        fence || self.fenced || self.indented && !blank
    }
}

fn is_row(line: &str) -> bool {
    line.trim_start().starts_with('|')
}

fn is_item(line: &str) -> bool {
    let text = line.trim_start();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    text.starts_with("- ") || text.starts_with("* ") || digits > 0 && text[digits..].starts_with(". ")
}

/// A row of a table is one line. Any other line can be broken at a space after its first word.
fn can_be_broken(line: &str) -> bool {
    let text = line.trim_start().trim_start_matches("- ");
    let indent = line.chars().count() - text.chars().count();
    !is_row(line) && text.chars().take(COLUMNS_MAX - indent.min(COLUMNS_MAX)).any(|c| c == ' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_line_is_a_breach_unless_it_cannot_be_broken() {
        let word = "x".repeat(COLUMNS_MAX + 1);
        assert_eq!(breaches("a.md", &format!("a {word}\n")).len(), 1);
        assert_eq!(breaches("a.md", &format!("- {word}\n| a {word} |\n{word}\n")), Vec::<String>::new());
    }

    #[test]
    fn long_paragraph_is_a_breach_and_a_list_is_not() {
        assert_eq!(breaches("a.md", &"line\n".repeat(PARAGRAPH_LINES_MAX + 1)).len(), 1);
        assert_eq!(breaches("a.md", &"- item\n".repeat(9)).len(), 0);
        assert_eq!(breaches("a.md", &"line\nline\n\n".repeat(9)).len(), 0);
    }

    #[test]
    fn code_blocks_are_not_prose() {
        let page = "prose\n\n```sh\nfenced\n```\n\n    indented\n\n- item\n\n      of the item\n";
        assert_eq!(prose(page), "prose\n\n\n\n\n\n\n\n- item\n\n      of the item\n");
    }
}
