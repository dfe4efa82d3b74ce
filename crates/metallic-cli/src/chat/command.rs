//! The commands of a conversation.

use std::path::Path;

pub(super) const HELP: &str = "\
/help           this list
/reset          forget the conversation, keep the system prompt
/system TEXT    set the system prompt (without TEXT: show it)
/save FILE      write the conversation to a new JSON file
/exit           leave (Ctrl-D does, too)
A line that ends in \\ goes on in the next; \"\"\" begins and ends a text of many lines.
Ctrl-C stops an answer.
Where the conversation fills the context, its oldest turns are left out; the system prompt stays, and /save writes all.
";

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Command<'a> {
    Help,
    Reset,
    System(Option<&'a str>),
    Save(&'a Path),
    Exit,
}

/// `None` for a text that is no command. A `/` followed by anything but a word, a path for
/// example, is text.
pub(super) fn parse(text: &str) -> Result<Option<Command<'_>>, String> {
    let text = text.trim();
    let Some(rest) = text.strip_prefix('/') else { return Ok(None) };
    let (word, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    if word.is_empty() || !word.bytes().all(|b| b.is_ascii_alphabetic()) {
        return Ok(None);
    }
    let command = match (word, argument.trim()) {
        ("help", "") => Command::Help,
        ("reset" | "clear", "") => Command::Reset,
        ("exit" | "quit" | "bye", "") => Command::Exit,
        ("system", "") => Command::System(None),
        ("system", text) => Command::System(Some(text)),
        ("save", "") => return Err("`/save` needs a file name: /save talk.json".to_owned()),
        ("save", path) => Command::Save(Path::new(path)),
        ("help" | "reset" | "clear" | "exit" | "quit" | "bye", extra) => {
            return Err(format!("`/{word}` takes nothing after it, found `{extra}`"));
        }
        _ => return Err(format!("there is no command `/{word}`; /help shows what there is")),
    };
    Ok(Some(command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_take_what_they_need_and_nothing_else() {
        assert_eq!(parse(" /help "), Ok(Some(Command::Help)));
        assert_eq!(parse("/system  Be\nbrief."), Ok(Some(Command::System(Some("Be\nbrief.")))));
        assert_eq!(parse("/save a b.json"), Ok(Some(Command::Save(Path::new("a b.json")))));
        assert!(parse("/save").is_err());
        assert!(parse("/reset now").is_err());
    }

    #[test]
    fn a_path_or_a_comment_is_text() {
        for text in ["/usr/bin is what?", "// a comment", "/", "/ x", "a /help"] {
            assert_eq!(parse(text), Ok(None), "{text}");
        }
    }
}
