//! The manual page, compared with the program.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Arg, Command};

use super::arguments::{CODES, command};
use crate::config::{Config, FIELDS};

const PAGE: &str = include_str!("../../bentpipe-gate.8");

/// The words of each command: `[--json]` for an option, `NAME` or `[NAME]` for an argument.
type Usages = BTreeMap<String, BTreeSet<String>>;

/// The lines of a section.
fn section(title: &str) -> &'static str {
    let (_, text) = PAGE.split_once(&format!("\n.Sh {title}\n")).expect("the section");
    text.split("\n.Sh ").next().unwrap_or_default()
}

/// The words that follow a macro in a line, which may begin with it.
fn after<'line>(line: &'line str, name: &str) -> Vec<&'line str> {
    let words: Vec<_> = line.trim_start_matches('.').split_whitespace().collect();
    words.windows(2).filter(|pair| pair[0] == name).map(|pair| pair[1]).collect()
}

/// The options and arguments of a line (`Fl -json`, `Ar NAME`), those in `Op`, or from `Oo` to `Oc`, in brackets.
fn usage(line: &str) -> BTreeSet<String> {
    let (mut words, mut is_optional) = (BTreeSet::new(), false);
    let mut tokens = line.trim_start_matches('.').split_whitespace();
    while let Some(token) = tokens.next() {
        let word = match token {
            "Oo" | "Op" => {
                is_optional = true;
                continue;
            }
            "Oc" => {
                is_optional = false;
                continue;
            }
            "Fl" => format!("-{}", tokens.next().expect("an option")),
            "Ar" => tokens.next().expect("an argument").to_owned(),
            _ => continue,
        };
        words.insert(if is_optional { format!("[{word}]") } else { word });
    }
    words
}

/// The usages in the SYNOPSIS, without that of `--help` and `--version`.
fn synopsis() -> Usages {
    let commands = section("SYNOPSIS").split(".Nm\n").filter_map(|part| {
        let lines = part.strip_prefix(".Cm ")?;
        let (name, rest) = lines.split_once('\n')?;
        Some((name.to_owned(), rest.lines().flat_map(usage).collect()))
    });
    commands.collect()
}

/// The headings of COMMANDS, and the options that are described below each.
fn described() -> (Usages, Usages) {
    let (mut headings, mut options) = (Usages::new(), Usages::new());
    let mut name = String::new();
    for line in section("COMMANDS").lines() {
        if let Some(heading) = line.strip_prefix(".It Cm ") {
            name = heading.split(' ').next().unwrap_or_default().to_owned();
            headings.insert(name.clone(), usage(heading));
            options.insert(name.clone(), BTreeSet::new());
        } else if let Some(option) = line.strip_prefix(".It ") {
            options.entry(name.clone()).or_default().extend(usage(option));
        }
    }
    (headings, options)
}

/// A command line whose arguments for help are filled in.
fn built() -> Command {
    let mut command = command();
    command.build();
    command
}

/// The commands that the help shows.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|it| !it.is_hide_set())
}

/// The option or the argument as a synopsis has it; `None` for `--help`, which all commands have.
fn word(argument: &Arg) -> Option<String> {
    let name = match argument.get_long() {
        Some("help") => return None,
        Some(long) => format!("--{long}"),
        None => argument.get_value_names()?.first()?.to_string(),
    };
    Some(if argument.is_required_set() { name } else { format!("[{name}]") })
}

#[test]
fn the_page_has_the_commands_and_options_of_the_program() {
    let program = built();
    let usage = |it: &Command| it.get_arguments().filter_map(word).collect::<BTreeSet<_>>();
    let usages: Usages = shown(&program).map(|it| (it.get_name().to_owned(), usage(it))).collect();
    assert!(usages["check"].contains("[--json]") && usages["check"].contains("CONFIG"));
    let (headings, options) = described();
    assert_eq!(synopsis(), usages);
    assert_eq!(headings, usages);
    let bare = |words: &BTreeSet<String>| {
        let words = words.iter().map(|word| word.trim_matches(['[', ']']));
        words.filter(|word| word.starts_with('-')).map(str::to_owned).collect()
    };
    let expected: Usages = usages.iter().map(|(name, words)| (name.clone(), bare(words))).collect();
    assert_eq!(options, expected);
}

/// Given the options and commands anywhere on the page, expect each to exist, and those without a command all.
#[test]
fn the_page_names_no_other_options_and_commands() {
    let program = built();
    let long = |it: &Command| {
        let names = it.get_arguments().filter_map(|argument| argument.get_long());
        names.map(|name| format!("-{name}")).collect::<Vec<_>>()
    };
    let short = program.get_arguments().filter_map(|argument| argument.get_short());
    let general: BTreeSet<_> =
        short.map(|letter| letter.to_string()).chain(long(&program)).collect();
    let known: BTreeSet<_> =
        general.iter().cloned().chain(shown(&program).flat_map(long)).collect();
    for option in PAGE.lines().flat_map(|line| after(line, "Fl")) {
        assert!(known.contains(option), "-{option}");
    }
    let described = section("DESCRIPTION").lines().filter_map(|line| line.strip_prefix(".It Fl "));
    let described = described.flat_map(|line| line.split(" , ").map(str::to_owned));
    assert_eq!(described.collect::<BTreeSet<_>>(), general);
    let names: BTreeSet<_> = shown(&program).map(Command::get_name).collect();
    for name in PAGE.lines().flat_map(|line| after(line, "Cm")) {
        assert!(names.contains(name), "{name}");
    }
}

#[test]
fn the_page_has_the_exit_codes_of_the_help() {
    let codes = section("EXIT STATUS").lines().filter_map(|line| line.strip_prefix(".It "));
    let in_help = CODES.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    assert_eq!(codes.collect::<Vec<_>>(), in_help.collect::<Vec<_>>());
}

#[test]
fn the_page_has_the_settings_of_a_configuration_and_one_that_is_right() {
    let text = section("CONFIGURATION");
    let settings = text.lines().filter_map(|line| line.strip_prefix(".It Li "));
    assert_eq!(settings.collect::<Vec<_>>(), FIELDS);
    let (_, example) = text.split_once(".Bd -literal -offset indent\n").expect("an example");
    let (example, _) = example.split_once(".Ed\n").expect("its end");
    Config::parse(example, "sat.toml").expect("a configuration");
}
