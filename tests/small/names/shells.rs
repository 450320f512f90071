//! Completion in real shells, manual pages, and help.

use std::process::Command;

use volt_tests::program::binary;
use volt_tests::scratch::list;
use volt_tests::{Names, needs, output};

/// Completes a line in bash as its Tab key does.
fn completed(names: &Names, line: &str) -> Vec<String> {
    let script = format!(
        "PATH={}:$PATH\nsource <(volt-vmm completion bash)\nCOMP_LINE={line:?}\nCOMP_WORDS=({line})\n\
         [[ $COMP_LINE == *' ' ]] && COMP_WORDS+=('')\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
         COMP_POINT=${{#COMP_LINE}}\nCOMP_TYPE=9\n\
         f=$(complete -p volt-vmm | sed 's/.*-F \\([^ ]*\\).*/\\1/')\n\
         $f volt-vmm \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        binary().parent().unwrap().display()
    );
    let mut command = Command::new("bash");
    for (name, value) in names.command([""; 0]).get_envs() {
        command.env(name, value.unwrap());
    }
    let output = command.args(["-c", &script]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text.lines().map(|word| word.trim().to_owned()).filter(|word| !word.is_empty());
    let words: Vec<_> = words.collect();
    assert!(!words.is_empty() || output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    words
}

#[test]
fn bash_completes_commands_and_names() {
    needs!(kvm, bash);
    let names = Names::new();
    names.boot("web", "echo");
    names.boot("worker", "hello");
    assert_eq!(names.run("wait worker").status, 0);
    names.ok("snapshot create web warm");
    assert_eq!(completed(&names, "volt-vmm rest"), ["restore"]);
    assert_eq!(completed(&names, "volt-vmm logs w"), ["web", "worker"]);
    assert_eq!(completed(&names, "volt-vmm stop w"), ["web"], "of those that live");
    assert_eq!(completed(&names, "volt-vmm events w"), ["web"]);
    assert_eq!(completed(&names, "volt-vmm rm w"), ["worker"], "of those that have ended");
    assert!(completed(&names, "volt-vmm restore w").contains(&"warm".to_owned()));
    assert_eq!(completed(&names, "volt-vmm snapshot rm w"), ["warm"]);
    names.ok("volume create --size 8M wide");
    assert_eq!(completed(&names, "volt-vmm volume rm w"), ["wide"]);
}

/// Makes a command of a shell that finds the program under test and knows no other settings.
fn shell(names: &Names, program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).envs(names.environment()).env("HOME", names.scratch().path("home"));
    let path = std::env::var("PATH").unwrap();
    command.env("PATH", format!("{}:{path}", binary().parent().unwrap().display()));
    command
}

#[test]
fn fish_completes_commands_and_names() {
    needs!(kvm, fish);
    let names = Names::new();
    names.boot("web", "echo");
    names.boot("worker", "hello");
    assert_eq!(names.run("wait worker").status, 0);
    let completed = |line: &str| {
        let script = format!("volt-vmm completion fish | source; complete -C '{line}'");
        let output = output(&mut shell(&names, "fish", &["--no-config", "-c", &script]));
        assert!(output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        // A tab is before the description.
        text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(completed("volt-vmm rest"), ["restore"]);
    assert_eq!(completed("volt-vmm logs w"), ["web", "worker"]);
    assert_eq!(completed("volt-vmm stop w"), ["web"]);
    assert_eq!(completed("volt-vmm rm w"), ["worker"]);
}

#[test]
fn zsh_completes_commands_and_names() {
    needs!(kvm, zsh);
    let names = Names::new();
    names.boot("web", "echo");
    names.boot("worker", "hello");
    assert_eq!(names.run("wait worker").status, 0);
    // An interactive shell on a pseudo-terminal. Ctrl-T prints the line that it has after the Tab key.
    let completed = |line: &str| {
        let script = format!(
            r#"zmodload zsh/zpty
            zpty z zsh -f -i
            zpty -w z 'PS1=; autoload -Uz compinit && compinit -u -D'
            zpty -w z 'source <(volt-vmm completion zsh)'
            zpty -w z 'show() {{ print -r -- "<$BUFFER>" }}; zle -N show'
            zpty -w z 'bindkey "^T" show; bindkey "^I" complete-word'
            zpty -w z 'print READY-$((1+1))'
            zpty -r z out '*READY-2*'
            zpty -n -w z $'{line}\t\x14'
            zpty -r z out '*<{line}*>*'
            print -r -- "$out"
            zpty -d z"#
        );
        let output = output(&mut shell(&names, "zsh", &["-f", "-c", &script]));
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let shown = text.rsplit_once('<').and_then(|(_, rest)| rest.split_once('>'));
        shown.unwrap_or_else(|| panic!("{text}")).0.to_owned()
    };
    assert_eq!(completed("volt-vmm rest"), "volt-vmm restore ");
    assert_eq!(completed("volt-vmm logs wo"), "volt-vmm logs worker ");
    assert_eq!(completed("volt-vmm stop w"), "volt-vmm stop web ");
    assert_eq!(completed("volt-vmm rm w"), "volt-vmm rm worker ");
}

#[test]
fn each_shell_gets_a_script() {
    let names = Names::new();
    for (shell, words) in [("bash", "complete "), ("zsh", "compdef"), ("fish", "complete ")] {
        assert!(names.ok(&format!("completion {shell}")).contains(words), "{shell}");
    }
    assert_eq!(names.run("completion tcsh").status, 2);
}

#[test]
fn each_command_gets_a_manual_page() {
    let names = Names::new();
    let directory = names.scratch().path("man");
    names.ok(&format!("man {}", directory.display()));
    let pages = list(&directory);
    for page in
        ["volt-vmm.1", "volt-vmm-run.1", "volt-vmm-ps.1", "volt-vmm-events.1", "volt-vmm-snapshot-create.1"]
    {
        assert!(pages.iter().any(|found| found == page), "{page}: {pages:?}");
    }
    assert!(pages.iter().all(|page| !page.contains("forked")), "hidden commands have no page: {pages:?}");
}

#[test]
fn help_explains_the_keys_of_devices() {
    let names = Names::new();
    for line in ["help devices", "devices"] {
        let help = names.ok(line);
        assert!(help.contains("  layer-size=SIZE ") && help.contains("  user "), "{help}");
    }
}

#[test]
fn help_in_a_wide_terminal_has_at_most_110_columns() {
    for words in ["--help", "run --help", "snapshot create --help", "help cpu check", "help help"] {
        let told = output(Command::new(binary()).args(words.split(' ')).env("COLUMNS", "200"));
        assert!(told.status.success(), "{told:?}");
        let text = String::from_utf8(told.stdout).unwrap();
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 110, "{words}: {widest} columns");
        // Each command in a list of them has a description.
        let (_, list) = text.split_once("\nCommands:\n").unwrap_or(("", ""));
        let names = list.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
        names.for_each(|line| assert!(line.split_whitespace().count() > 3, "{words}: {line}"));
    }
}
