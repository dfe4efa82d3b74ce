//! A socket of each process, in a folder of the user's alone: who attaches learns what holds, and then what happens.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::hub::Hub;
use super::writer::{Lines, Writer};

/// How long the end waits for a reader.
const PATIENCE: Duration = Duration::from_secs(1);
/// After a failure to accept, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// The folder of sockets: `$METALLIC_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/metallic`, else one in the folder for temporary files that
/// belongs to this user alone. It is made where it is not there.
pub(super) fn folder() -> io::Result<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(named) = var("METALLIC_RUNTIME_DIR") {
        return made(named);
    }
    match var("XDG_RUNTIME_DIR") {
        Some(folder) => made(folder.join("metallic")),
        None => private(&std::env::temp_dir()),
    }
}

fn made(folder: PathBuf) -> io::Result<PathBuf> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|error| of_path(&folder, &error))?;
    Ok(folder)
}

fn of_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("`{}`: {error}", path.display()))
}

/// A folder below one that everybody may write to: whoever made it must be this user, and nobody else may enter.
fn private(shared: &Path) -> io::Result<PathBuf> {
    let user = user(shared).map_err(|error| of_path(shared, &error))?;
    let folder = shared.join(format!("metallic-{user}"));
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(of_path(&folder, &error)),
        Ok(()) | Err(_) => {}
    }
    // Not that of what a link points to.
    let found = fs::symlink_metadata(&folder).map_err(|error| of_path(&folder, &error))?;
    let refused = |what: String| Err(io::Error::other(format!("`{}` {what}", folder.display())));
    if !found.is_dir() {
        return refused("is no folder".to_owned());
    }
    if found.uid() != user {
        return refused(format!("belongs to user {}, not to user {user}", found.uid()));
    }
    if found.mode() & 0o077 != 0 {
        return refused(format!("may be entered by others: its mode is {:o}, not 700", found.mode() & 0o777));
    }
    Ok(folder)
}

/// Who this process runs as: who a new file belongs to.
fn user(folder: &Path) -> io::Result<u32> {
    let path = folder.join(format!(".metallic-{}-{:?}", std::process::id(), thread::current().id()));
    let user = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?.metadata()?.uid();
    fs::remove_file(&path)?;
    Ok(user)
}

/// A process that can be attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its socket.
    pub socket: PathBuf,
}

impl Process {
    /// Attaches to it: lines of JSON come, first what holds, then what happens.
    pub fn attach(&self) -> io::Result<UnixStream> {
        UnixStream::connect(&self.socket).map_err(|error| of_path(&self.socket, &error))
    }
}

/// Processes of this user that can be attached to. Sockets that processes have left behind are removed.
pub fn processes() -> io::Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder()?)? {
        let socket = entry?.path();
        let is_socket = socket.extension().is_some_and(|extension| extension == "sock");
        let pid = socket.file_stem().and_then(|stem| stem.to_str()?.parse().ok()).filter(|_| is_socket);
        let Some(pid) = pid else { continue };
        match UnixStream::connect(&socket) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // Another reader may have been quicker.
                let _ = fs::remove_file(&socket);
            }
            Ok(_) | Err(_) => found.push(Process { pid, socket }),
        }
    }
    found.sort_by_key(|process: &Process| process.pid);
    Ok(found)
}

/// The socket of this process, and those who are attached.
#[derive(Debug)]
pub(super) struct Socket {
    path: PathBuf,
    is_closing: Arc<AtomicBool>,
    readers: Arc<Mutex<Vec<Reader>>>,
}

#[derive(Debug)]
struct Reader {
    writer: Writer,
    stream: UnixStream,
}

impl Socket {
    pub(super) fn open(hub: &Arc<Hub>) -> io::Result<Socket> {
        let path = folder()?.join(format!("{}.sock", std::process::id()));
        let listener = bind(&path).map_err(|error| of_path(&path, &error))?;
        let socket = Socket { path, is_closing: Arc::default(), readers: Arc::default() };
        let (hub, readers) = (Arc::clone(hub), Arc::clone(&socket.readers));
        let is_closing = Arc::clone(&socket.is_closing);
        let accept = move || {
            for stream in listener.incoming() {
                if is_closing.load(Ordering::SeqCst) {
                    return;
                }
                let attached = stream.and_then(|stream| Reader::start(&hub, stream));
                let mut readers = readers.lock().unwrap_or_else(PoisonError::into_inner);
                readers.retain(|reader| !reader.writer.is_done());
                match attached {
                    Ok(reader) => readers.extend(reader),
                    // Whoever wanted to attach sees the line end.
                    Err(_) => thread::sleep(PAUSE),
                }
            }
        };
        thread::Builder::new().name("metallic-socket".to_owned()).spawn(accept)?;
        Ok(socket)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Nobody attaches any more, and who is attached gets the end.
    pub(super) fn close(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
        // Wakes the thread that waits for readers.
        let _ = UnixStream::connect(&self.path);
        let _ = fs::remove_file(&self.path);
        let readers = std::mem::take(&mut *self.readers.lock().unwrap_or_else(PoisonError::into_inner));
        for Reader { writer, stream } in readers {
            // A reader that is gone, or asleep, misses the end.
            let _ = writer.finish_within(PATIENCE);
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Binds a socket that only this user may connect to, in place of one that a process of this number has left behind.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && UnixStream::connect(path).is_err() => {
            fs::remove_file(path)?;
            UnixListener::bind(path)?
        }
        bound => bound?,
    };
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

impl Reader {
    fn start(hub: &Arc<Hub>, stream: UnixStream) -> io::Result<Option<Reader>> {
        let lines = Lines::to(stream.try_clone()?);
        Ok(Writer::start(hub, None, lines)?.map(|writer| Reader { writer, stream }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_below_one_of_everybody_is_the_users_alone() {
        let shared = tempfile::tempdir().unwrap();
        let folder = private(shared.path()).unwrap();
        let found = fs::metadata(&folder).unwrap();
        assert_eq!(found.mode() & 0o777, 0o700);
        assert_eq!(private(shared.path()).unwrap(), folder, "it is there the next time");
        assert_eq!(fs::read_dir(shared.path()).unwrap().count(), 1, "nothing else is left");

        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let error = private(shared.path()).unwrap_err().to_string();
        assert!(error.contains("its mode is 755, not 700"), "{error}");
        fs::remove_dir(&folder).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &folder).unwrap();
        let error = private(shared.path()).unwrap_err().to_string();
        assert!(error.contains("is no folder"), "{error}");
        let error = private(Path::new("/proc")).unwrap_err().to_string();
        assert!(error.starts_with("`/proc`: "), "{error}");
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_one_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.sock");
        drop(UnixListener::bind(&path).unwrap());
        let listener = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(bind(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
    }
}
