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

use crate::{
    escape,
    fail::{self, Failure},
    interrupt::Listener,
};
use command::{Command, HELP, parse};
use input::{Input, Typed, read_message};

/// What answers.
pub(crate) trait Responder {
    /// What the messages take of the context.
    fn room(&self, messages: &[Message]) -> anyhow::Result<Room>;

    /// Streams the answer to `out`, ends its line and gives it whole. Stops early, with what there is so far, once
    /// `interrupt::check` fails.
    fn answer(&self, messages: &[Message], out: &mut dyn Write) -> anyhow::Result<Reply>;
}

/// Tokens that messages take, that the context holds, and that an answer should have left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    pub(crate) needed: usize,
    pub(crate) context: usize,
    pub(crate) answer: usize,
}

/// An answer, and lines about it, such as its speed.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) remarks: Vec<String>,
}

impl From<Reply> for Message {
    /// Thoughts go along under the name that templates look for; those that do not ask for them leave them out.
    fn from(reply: Reply) -> Message {
        let mut message = Message::assistant(reply.text);
        if !reply.reasoning.is_empty() {
            message.extra.insert("reasoning_content".to_owned(), reply.reasoning.into());
        }
        message
    }
}

/// A conversation so far.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    system: Option<String>,
    turns: Vec<Message>,
    /// The oldest turns, which the context has no room for any more.
    forgotten: usize,
}

impl Conversation {
    pub(crate) fn new(system: Option<String>) -> Self {
        Self { system, ..Self::default() }
    }

    /// The system prompt, if there is one, and the turns from one on.
    fn messages(&self, first: usize) -> Vec<Message> {
        let system = self.system.iter().map(Message::system);
        system.chain(self.turns.iter().skip(first).cloned()).collect()
    }

    /// Forgets the oldest turns, question and answer together, until the last message and an answer have room. Gives how
    /// many messages were forgotten. A message that has no room alone is refused.
    fn make_room(&mut self, responder: &dyn Responder) -> anyhow::Result<usize> {
        let last = self.turns.len().saturating_sub(1);
        let mut first = self.forgotten;
        loop {
            let room = responder.room(&self.messages(first))?;
            // The last message alone may take what an answer should have, but not all of it.
            let wanted = if first < last { room.answer.max(1) } else { 1 };
            if room.needed.saturating_add(wanted) <= room.context {
                break;
            }
            if first >= last {
                return Err(self.too_large(room, responder)?.into());
            }
            first = (first + 2).min(last);
        }
        let more = first - self.forgotten;
        self.forgotten = first;
        Ok(more)
    }

    fn too_large(&self, room: Room, responder: &dyn Responder) -> anyhow::Result<Failure> {
        let mut empty = self.messages(self.turns.len());
        empty.push(Message::user("x"));
        let around = responder.room(&empty)?.needed.saturating_sub(1);
        let reason = format!(
            "the message takes {} tokens, and {} fit: the context holds {}, of which system prompt and template take {around}",
            room.needed.saturating_sub(around),
            room.context.saturating_sub(around + 1),
            room.context,
        );
        Ok(Failure::new(reason, "shorten it, or start with a larger `--ctx`"))
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
            Err(problem) => writeln!(notes, "{}", escape::line(&problem))?,
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
    let result = conversation.make_room(responder).and_then(|forgotten| {
        if forgotten > 0 {
            writeln!(
                notes,
                "(the context is full: the {forgotten} oldest messages are left out from here on)"
            )?;
        }
        // Ctrl-C ends this answer, not the program.
        let _listener = Listener::new();
        responder.answer(&conversation.messages(conversation.forgotten), out)
    });
    match result {
        Ok(mut reply) => {
            for remark in reply.remarks.drain(..) {
                writeln!(notes, "{remark}")?;
            }
            conversation.turns.push(reply.into());
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
            conversation.forgotten = 0;
            writeln!(notes, "(a new conversation)")
        }
        Command::System(None) => match &conversation.system {
            Some(system) => writeln!(notes, "{}", escape::output(system)),
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
    let mut text = serde_json::to_vec_pretty(&conversation.messages(0))?;
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

    /// Answers with the number of messages and the last of them; fails on `fail`. A token is a letter of a message.
    struct Echo {
        context: usize,
    }

    impl Responder for Echo {
        fn room(&self, messages: &[Message]) -> anyhow::Result<Room> {
            let letters = |message: &Message| message.content.as_ref().unwrap().as_str().unwrap().len();
            let needed = messages.iter().map(letters).sum();
            Ok(Room { needed, context: self.context, answer: self.context / 4 })
        }

        fn answer(&self, messages: &[Message], out: &mut dyn Write) -> anyhow::Result<Reply> {
            let last = messages[messages.len() - 1].content.as_ref().unwrap().as_str().unwrap();
            if last == "fail" {
                bail!("the context is full");
            }
            let system = messages.iter().filter(|message| message.role == "system").count();
            let text = format!("{}/{system}:{last}", messages.len());
            writeln!(out, "{text}")?;
            Ok(Reply {
                text,
                reasoning: if last == "think" { "hm".to_owned() } else { String::new() },
                ..Reply::default()
            })
        }
    }

    fn play(script: &str) -> (String, String, Conversation) {
        play_in(script, 1000)
    }

    fn play_in(script: &str, context: usize) -> (String, String, Conversation) {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut conversation = Conversation::new(None);
        let mut input = input::Plain(script.as_bytes());
        talk(&mut conversation, &mut input, &Echo { context }, &mut out, &mut notes).unwrap();
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
    fn a_full_conversation_goes_on_without_its_oldest_turns() {
        // A turn takes 4 + 8 letters; the system prompt 4, and 10 are kept for an answer.
        let (out, notes, conversation) = play_in("/system SYS:\naaaa\nbbbb\ncccc\ndddd\n", 40);
        assert_eq!(out, "2/1:aaaa\n4/1:bbbb\n4/1:cccc\n4/1:dddd\n");
        let told = "(the context is full: the 2 oldest messages are left out from here on)";
        assert_eq!(notes.matches(told).count(), 2, "{notes}");
        assert_eq!((conversation.turns.len(), conversation.forgotten), (8, 4));
        // What is saved is all that was said.
        assert_eq!(conversation.messages(0).len(), 9);
    }

    #[test]
    fn a_message_that_is_too_large_alone_is_refused_with_what_fits_and_nothing_is_forgotten() {
        let long = "x".repeat(38);
        let (out, notes, conversation) = play_in(&format!("/system SYS:\naaaa\n{long}\nbbbb\n"), 40);
        assert_eq!(out, "2/1:aaaa\n4/1:bbbb\n");
        assert!(notes.contains("the message takes 38 tokens, and 35 fit: the context holds 40"), "{notes}");
        assert_eq!((conversation.turns.len(), conversation.forgotten), (4, 0));
        let (out, _, _) = play_in(&format!("{}\n", "x".repeat(39)), 40);
        assert!(out.starts_with("1/0:xxx"), "{out}");
    }

    #[test]
    fn thoughts_are_kept_apart_from_the_answer() {
        let (_, _, conversation) = play("think\na\n");
        let answers: Vec<_> = conversation.turns.iter().filter(|turn| turn.role == "assistant").collect();
        assert_eq!(answers[0].content, Some("1/0:think".into()));
        assert_eq!(answers[0].extra.get("reasoning_content"), Some(&"hm".into()));
        assert!(answers[1].extra.is_empty());
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
