//! A conversation: what was typed goes in, commands are carried out, answers are kept.
//!
//! The engine stands behind [`Responder`]; where lines come from stands behind [`input::Input`].

mod command;
pub(crate) mod input;

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use metallic::Message;

use crate::{fail, interrupt::Listener};
use command::{Command, HELP, parse};
use input::{Input, Typed, read_message};

/// What answers.
pub(crate) trait Responder {
    /// Streams the answer to `out` and gives its whole text, and a note on it, such as its speed. Stops early, with what there
    /// is so far, once `interrupt::check` fails.
    fn answer(&self, messages: &[Message], out: &mut dyn Write) -> anyhow::Result<(String, Option<String>)>;
}

/// A conversation so far.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    system: Option<String>,
    turns: Vec<Message>,
}

impl Conversation {
    pub(crate) fn new(system: Option<String>) -> Self {
        Self { system, turns: Vec::new() }
    }

    /// The system prompt, if there is one, and the turns.
    fn messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(Message::system);
        system.chain(self.turns.iter().cloned()).collect()
    }
}

/// Talks until `/exit`, Ctrl-D or the end of the input. Answers go to `out`, everything else to `notes`.
pub(crate) fn talk(
    conversation: &mut Conversation,
    input: &mut dyn Input,
    responder: &dyn Responder,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> anyhow::Result<()> {
    loop {
        let text = match read_message(input)? {
            Typed::Text(text) if text.trim().is_empty() => continue,
            Typed::Text(text) => text,
            Typed::Interrupted => {
                writeln!(notes, "(/exit or Ctrl-D leaves)")?;
                continue;
            }
            Typed::End => return Ok(()),
        };
        match parse(&text) {
            Ok(None) => answer(conversation, text, responder, out, notes)?,
            Ok(Some(Command::Exit)) => return Ok(()),
            Ok(Some(command)) => obey(command, conversation, notes)?,
            Err(problem) => writeln!(notes, "{problem}")?,
        }
    }
}

fn answer(
    conversation: &mut Conversation,
    text: String,
    responder: &dyn Responder,
    out: &mut dyn Write,
    notes: &mut dyn Write,
) -> anyhow::Result<()> {
    conversation.turns.push(Message::user(text));
    let result = {
        // Ctrl-C ends this answer, not the program.
        let _listener = Listener::new();
        responder.answer(&conversation.messages(), out)
    };
    match result {
        Ok((answer, remark)) => {
            conversation.turns.push(Message::assistant(answer));
            writeln!(out)?;
            out.flush()?;
            if let Some(remark) = remark {
                writeln!(notes, "{remark}")?;
            }
        }
        Err(error) if is_io(&error) => return Err(error),
        Err(error) => {
            // The turn did not happen: the next one must not answer it.
            conversation.turns.pop();
            writeln!(notes, "error: {}", fail::reason(&error))?;
            if let Some(hint) = fail::hint(&error) {
                writeln!(notes, "hint: {hint}; /reset begins a new conversation")?;
            }
        }
    }
    Ok(())
}

/// The reader of the answers is gone, or the disk behind them is full: no sense in going on.
fn is_io(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some())
}

fn obey(command: Command<'_>, conversation: &mut Conversation, notes: &mut dyn Write) -> io::Result<()> {
    match command {
        Command::Help => write!(notes, "{HELP}"),
        Command::Reset => {
            conversation.turns.clear();
            writeln!(notes, "(a new conversation)")
        }
        Command::System(None) => match &conversation.system {
            Some(system) => writeln!(notes, "{system}"),
            None => writeln!(notes, "(no system prompt)"),
        },
        Command::System(Some(text)) => {
            conversation.system = Some(text.to_owned());
            writeln!(notes, "(system prompt set)")
        }
        Command::Save(path) => match save(conversation, path) {
            Ok(()) => writeln!(notes, "(saved to {})", path.display()),
            Err(error) => writeln!(notes, "cannot save to {}: {error}", path.display()),
        },
        Command::Exit => Ok(()),
    }
}

/// Writes the messages as JSON, the form that `tool template --messages` reads. Overwrites nothing.
fn save(conversation: &Conversation, path: &Path) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(&conversation.messages())?;
    text.push(b'\n');
    let mut file = File::create_new(path)?;
    file.write_all(&text).and_then(|()| file.sync_all()).inspect_err(|_| {
        let _ = std::fs::remove_file(path);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::path::PathBuf;

    /// Answers with the number of messages and the last of them; fails on `fail`.
    struct Echo;

    impl Responder for Echo {
        fn answer(
            &self,
            messages: &[Message],
            out: &mut dyn Write,
        ) -> anyhow::Result<(String, Option<String>)> {
            let last = messages[messages.len() - 1].content.as_ref().unwrap().as_str().unwrap();
            if last == "fail" {
                bail!("the context is full");
            }
            let system = messages.iter().filter(|message| message.role == "system").count();
            let text = format!("{}/{system}:{last}", messages.len());
            out.write_all(text.as_bytes())?;
            Ok((text, None))
        }
    }

    fn play(script: &str) -> (String, String, Conversation) {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut conversation = Conversation::new(None);
        let mut input = input::Plain(script.as_bytes());
        talk(&mut conversation, &mut input, &Echo, &mut out, &mut notes).unwrap();
        (String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap(), conversation)
    }

    #[test]
    fn turns_add_up_and_reset_forgets_them() {
        let (out, _, _) = play("a\n\n  \nb\n/reset\nc\n");
        assert_eq!(out, "1/0:a\n3/0:b\n1/0:c\n");
    }

    #[test]
    fn a_system_prompt_comes_first_and_survives_a_reset() {
        let (out, notes, _) = play("/system Be brief.\n/reset\na\n/system\n");
        assert_eq!(out, "2/1:a\n");
        assert!(notes.ends_with("Be brief.\n"), "{notes}");
    }

    #[test]
    fn exit_ends_the_conversation_and_unknown_commands_are_named() {
        let (out, notes, _) = play("/nope x\n/exit\na\n");
        assert_eq!(out, "");
        assert!(notes.contains("`/nope`") && notes.contains("/help"), "{notes}");
    }

    #[test]
    fn help_names_every_command() {
        let (_, notes, _) = play("/help\n");
        for command in ["/help", "/reset", "/system", "/save", "/exit"] {
            assert!(notes.contains(command), "{command}");
        }
    }

    #[test]
    fn a_failed_answer_leaves_no_trace_in_the_conversation() {
        let (out, notes, conversation) = play("fail\na\n");
        assert_eq!(out, "1/0:a\n");
        assert!(notes.contains("the context is full"), "{notes}");
        assert_eq!(conversation.turns.len(), 2);
    }

    #[test]
    fn save_writes_messages_and_will_not_overwrite() {
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("talk.json");
        let save = format!("/save {}", path.display());
        let (_, notes, _) = play(&format!("/system S\nhi \"x\"\n{save}\n{save}\n"));
        let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(saved[0], serde_json::json!({"role": "system", "content": "S"}));
        assert_eq!(saved[1], serde_json::json!({"role": "user", "content": "hi \"x\""}));
        assert_eq!(saved[2]["role"], "assistant");
        assert!(notes.contains("(saved to") && notes.contains("cannot save to"), "{notes}");
    }
}
