// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * An agent of `cargo xtask corpus` in JavaScript, started from scratch:
 *
 *     corpus_node.js --socket PATH --archive FILE --index N --seed S --scenario NAME
 *
 * It speaks as corpus_sandbox.py does: says hello, then answers {"cmd": "turn"} with the number
 * of the turn. It works on the JavaScript packages of the root, not on the archive: parses them
 * with the TypeScript compiler, searches, edits, compiles, counts, and keeps a JSON history.
 */
"use strict";

const fs = require("fs");
const net = require("net");
const path = require("path");
const readline = require("readline");
const ts = require("typescript");

const LIBRARY = "/usr/share/nodejs";
const FILES_PER_TURN = 4;
// Syntax trees kept from one turn to the next.
const TREES = 6;
const PATTERNS = [
	/\bthrow new \w*Error/,
	/\bthis\._?\w+ = /,
	/\btypeof \w+ [!=]==? /,
	/\breturn (null|true|false|undefined)\b/,
	/\brequire\(['"]/,
	/\bfor \((const|let|var) /,
];

/** Numbers in [0, 1) that depend on a text only (mulberry32). */
function generator(text) {
	let state = 0x811c9dc5;
	for (const character of text) {
		state = Math.imul(state ^ character.codePointAt(0), 0x01000193);
	}
	return () => {
		state = (state + 0x6d2b79f5) | 0;
		let z = Math.imul(state ^ (state >>> 15), state | 1);
		z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
		return ((z ^ (z >>> 14)) >>> 0) / 4294967296;
	};
}

/** JavaScript files of the packages, of the size that people write. */
function sourceFiles(folder) {
	const found = [];
	for (const entry of fs.readdirSync(folder, { withFileTypes: true })) {
		const name = path.join(folder, entry.name);
		if (entry.isDirectory()) {
			found.push(...sourceFiles(name));
		} else if (entry.isFile() && /\.(js|mjs)$/.test(entry.name)) {
			const size = fs.statSync(name).size;
			if (size >= 4000 && size <= 120000) {
				found.push(name);
			}
		}
	}
	return found.sort();
}

/** One agent: what it keeps, and how it decides. */
class Agent {
	constructor(index, seed) {
		this.index = index;
		this.seed = seed;
		this.turn = 0;
		this.paths = sourceFiles(LIBRARY);
		this.files = new Map();
		this.trees = new Map();
		this.symbols = [];
		this.callers = new Map();
		this.matches = [];
		this.diffs = [];
		this.outputs = new Map();
		this.tables = [];
		this.vocabulary = [];
		this.history = [];
		this.transcript = "";
	}

	pick(list) {
		return list[Math.floor(this.random() * list.length)];
	}

	/** One turn: what the model asked for, then its next message. */
	step() {
		this.random = generator(`${this.seed}/${this.index}/${this.turn}`);
		const facts = [];
		for (const name of [...this.trees.keys()].slice(0, -TREES)) {
			this.trees.delete(name);
		}
		for (let n = 0; n < FILES_PER_TURN; n++) {
			const name = this.pick(this.paths);
			facts.push({ read: name, symbols: this.study(name) });
		}
		for (let n = 0; n < 2; n++) {
			const pattern = this.pick(PATTERNS);
			facts.push({ search: String(pattern), hits: this.search(pattern) });
		}
		const actions = ["edit", "compile", "measure", "graph"];
		for (let n = 0; n < 3; n++) {
			const action = this.pick(actions);
			facts.push({ [action]: this[action]() });
		}
		this.converse("assistant", { plan: this.sentence(40) }, 60);
		this.converse("tool", { results: facts }, 30);
		this.turn++;
	}

	/** Reads and parses a file, keeps its tree and adds its definitions to the index. */
	study(name) {
		const text = fs.readFileSync(name, "utf8");
		this.files.set(name, text.split("\n"));
		const words = text.match(/[A-Za-z][A-Za-z'-]{2,}/g) || [];
		this.vocabulary.push(...words.slice(0, 4000));
		const tree = ts.createSourceFile(name, text, ts.ScriptTarget.Latest, true);
		this.trees.set(name, tree);
		const before = this.symbols.length;
		const visit = (node, owner) => {
			let inside = owner;
			if (node.name && (ts.isFunctionLike(node) || ts.isClassDeclaration(node))) {
				const { line } = tree.getLineAndCharacterOfPosition(node.getStart());
				inside = { name: node.name.getText(), file: name, line, kind: ts.SyntaxKind[node.kind] };
				this.symbols.push(inside);
			} else if (ts.isCallExpression(node) && owner) {
				const callee = node.expression.getText().split(".").pop().slice(0, 60);
				if (!this.callers.has(callee)) {
					this.callers.set(callee, new Set());
				}
				this.callers.get(callee).add(owner);
			}
			ts.forEachChild(node, (child) => visit(child, inside));
		};
		visit(tree, null);
		return this.symbols.length - before;
	}

	/** Searches the files read so far. */
	search(pattern) {
		let hits = 0;
		for (const [file, lines] of this.files) {
			lines.forEach((line, number) => {
				if (pattern.test(line)) {
					this.matches.push({ file, number, text: line.trim().slice(0, 200) });
					hits++;
				}
			});
		}
		return hits;
	}

	/** Renames an identifier and adds comments in a file; keeps the changed lines. */
	edit() {
		const name = this.pick([...this.files.keys()]);
		const lines = this.files.get(name);
		const names = [...new Set(lines.join("\n").match(/\b[a-z]\w{4,}\b/g) || ["value"])];
		const old = this.pick(names);
		const expression = new RegExp(`\\b${old}\\b`, "g");
		const diff = [];
		const after = lines.map((line, number) => {
			const changed = line.replace(expression, `${old}Checked`);
			if (changed !== line) {
				diff.push({ number, before: line, after: changed });
			}
			return changed;
		});
		after.unshift(`// ${this.sentence(12)}`);
		this.files.set(name, after);
		this.diffs.push({ name, old, diff });
		return diff.length;
	}

	/** Compiles a file as it is now, to an older language. */
	compile() {
		const name = this.pick([...this.files.keys()]);
		const { outputText, diagnostics } = ts.transpileModule(this.files.get(name).join("\n"), {
			compilerOptions: { target: ts.ScriptTarget.ES5, module: ts.ModuleKind.CommonJS },
			reportDiagnostics: true,
			fileName: name,
		});
		this.outputs.set(name, outputText);
		return { length: outputText.length, problems: diagnostics.length };
	}

	/** Counts and sorts simulated timings of the definitions. */
	measure() {
		const rows = [];
		for (let n = 0; n < 8000; n++) {
			const symbol = this.pick(this.symbols);
			const milliseconds = Math.round(Math.exp(this.random() * 5) * 100) / 100;
			rows.push({ symbol, milliseconds, attempt: 1 + Math.floor(this.random() * 3) });
		}
		const totals = new Map();
		for (const { symbol, milliseconds } of rows) {
			totals.set(symbol.file, (totals.get(symbol.file) || 0) + milliseconds);
		}
		this.tables = [...this.tables.slice(-1), rows];
		return [...totals].sort((a, b) => b[1] - a[1]).slice(0, 5);
	}

	/** Who is called from most places. */
	graph() {
		const counts = [...this.callers].map(([callee, callers]) => [callee, callers.size]);
		return counts.sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).slice(0, 10);
	}

	/** Text of this agent: words of what it read. */
	sentence(words) {
		return Array.from({ length: words }, () => this.pick(this.vocabulary)).join(" ");
	}

	/** Appends a message to the history and renews what is sent to the model. */
	converse(role, facts, sentences) {
		const content = Array.from({ length: sentences }, () =>
			this.sentence(8 + Math.floor(this.random() * 12)),
		);
		this.history.push({ role, turn: this.turn, facts, content });
		this.transcript = JSON.stringify(this.history, null, 1);
	}
}

/** The value of a command line option. */
function option(name) {
	const at = process.argv.indexOf(`--${name}`);
	if (at < 0 || at + 1 >= process.argv.length) {
		throw new Error(`--${name} VALUE is missing`);
	}
	return process.argv[at + 1];
}

const index = Number(option("index"));
const agent = new Agent(index, option("seed"));
const runner = net.connect(option("socket"));
const say = (message) => runner.write(JSON.stringify(message) + "\n");
say({ hello: "sandbox", index });
readline.createInterface({ input: runner }).on("line", (line) => {
	if (JSON.parse(line).cmd === "exit") {
		runner.destroy();
		return;
	}
	agent.step();
	say({ turn: agent.turn });
});
