BEGIN TRANSACTION;
CREATE TABLE adapters (
	id INTEGER NOT NULL, 
	agent TEXT NOT NULL, 
	state TEXT NOT NULL, 
	version BIGINT, 
	sha TEXT NOT NULL, 
	snapshot TEXT NOT NULL, 
	step_number BIGINT NOT NULL, 
	created_at_us BIGINT NOT NULL, 
	CONSTRAINT pk_adapters PRIMARY KEY (id), 
	CONSTRAINT uq_adapters_agent_version UNIQUE (agent, version), 
	CONSTRAINT ck_adapters_versions_are_numbered CHECK ((state = 'shadow') = (version IS NULL))
);
INSERT INTO "adapters" VALUES(1,'ada','shadow',NULL,'sha1','shadow/sha1.safetensors',1,1796263831130421);
INSERT INTO "adapters" VALUES(2,'ada','kept',0,'sha0','shadow/sha0.safetensors',0,1796263831109612);
INSERT INTO "adapters" VALUES(3,'ada','stable',1,'sha1','shadow/sha1.safetensors',1,1796263831137511);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE leases (
	agent TEXT NOT NULL, 
	lane TEXT NOT NULL, 
	token BIGINT NOT NULL, 
	made_for JSON NOT NULL, 
	expires_at_us BIGINT NOT NULL, 
	CONSTRAINT pk_leases PRIMARY KEY (agent)
);
CREATE TABLE ledger (
	seq INTEGER NOT NULL, 
	at_us BIGINT NOT NULL, 
	kind TEXT NOT NULL, 
	agent TEXT NOT NULL, 
	context TEXT, 
	code TEXT, 
	subject TEXT NOT NULL, 
	body JSON NOT NULL, 
	previous TEXT NOT NULL, 
	sha TEXT NOT NULL, 
	CONSTRAINT pk_ledger PRIMARY KEY (seq)
);
INSERT INTO "ledger" VALUES(1,1796263831101651,'turn','ada','room',NULL,'t1','{"adapter": "base", "cached_token_count": 2, "finish_reason": "stop", "first_token_ms": 4.5, "lane": "alone", "private": false, "prompt_token_count": 5, "reply_token_count": 3, "slot": 0, "total_ms": 31.25}','0000000000000000000000000000000000000000000000000000000000000000','ff35bf7525adb179c86172ae254635a7d914207e696517217febe4a6f5a79942');
INSERT INTO "ledger" VALUES(2,1796263831105361,'signal','ada','room',NULL,'s1','{"engram": null, "fingerprint": "f1", "kind": "engram", "state": "received", "turn": "t1"}','ff35bf7525adb179c86172ae254635a7d914207e696517217febe4a6f5a79942','9c133cc16a87a226b00d1a1fadf97164550ccc676a598a1c757d4f64eb9dc18c');
INSERT INTO "ledger" VALUES(3,1796263831111487,'promotion','ada',NULL,NULL,'ada','{"sha": "sha0", "snapshot": "shadow/sha0.safetensors", "version": 0}','9c133cc16a87a226b00d1a1fadf97164550ccc676a598a1c757d4f64eb9dc18c','46b49736413a28665e524d89e5a02912c7233369057c23f2f3b7a56ce8d08e3f');
INSERT INTO "ledger" VALUES(4,1796263831114402,'lesson','ada','room',NULL,'l1','{"kind": "action", "lr": null, "prefix_token_count": 4, "rows": 3, "signals": {"s1": "makes"}, "state": "planned", "turn": "t1", "weight_sum": 0.35}','46b49736413a28665e524d89e5a02912c7233369057c23f2f3b7a56ce8d08e3f','e22571e99bd9719a6767d20d9fcb257d472ccb7d1949cac2e066192814593fdd');
INSERT INTO "ledger" VALUES(5,1796263831125749,'lesson','ada','room',NULL,'l1','{"ridden_turn": "t2", "state": "riding"}','e22571e99bd9719a6767d20d9fcb257d472ccb7d1949cac2e066192814593fdd','b7d009722cfb800a925ca5342759ec7471130469c85e089b0c5f3881a8d3f6d4');
INSERT INTO "ledger" VALUES(6,1796263831134878,'step','ada','room',NULL,'x1','{"gradient_norm": 0.75, "kl_served": null, "learning_ms": 120.5, "lesson": "l1", "loss_after": 1.5, "loss_before": 2.5, "lr": 0.0001, "number": 1, "peak_bytes": 8589934592, "rows": 3, "shadow_after": "sha1", "shadow_before": "sha0", "signals": ["s1"], "snapshot": "shadow/sha1.safetensors", "waited_ms": 3.5}','b7d009722cfb800a925ca5342759ec7471130469c85e089b0c5f3881a8d3f6d4','cada5939e27887c40777de922110b57a898e0e6e2680333abc39c072f1b9f9b5');
INSERT INTO "ledger" VALUES(7,1796263831138355,'promotion','ada',NULL,NULL,'ada','{"replaces": 0, "sha": "sha1", "snapshot": "shadow/sha1.safetensors", "step_number": 1, "version": 1}','cada5939e27887c40777de922110b57a898e0e6e2680333abc39c072f1b9f9b5','b4865583363d4c0af55555a7e99fc6bd1b2113dfa16e090c91a6a38b37a9fd08');
CREATE TABLE lesson_signals (
	lesson TEXT NOT NULL, 
	signal TEXT NOT NULL, 
	role TEXT NOT NULL, 
	CONSTRAINT pk_lesson_signals PRIMARY KEY (lesson, signal), 
	CONSTRAINT fk_lesson_signals_lesson FOREIGN KEY(lesson) REFERENCES lessons (id), 
	CONSTRAINT fk_lesson_signals_signal FOREIGN KEY(signal) REFERENCES signals (id)
);
INSERT INTO "lesson_signals" VALUES('l1','s1','makes');
CREATE TABLE lessons (
	id TEXT NOT NULL, 
	agent TEXT NOT NULL, 
	context TEXT NOT NULL, 
	turn TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	state TEXT NOT NULL, 
	prefix_token_count BIGINT NOT NULL, 
	tokens BLOB NOT NULL, 
	targets BLOB NOT NULL, 
	weights BLOB NOT NULL, 
	lr DOUBLE, 
	planned_at_us BIGINT NOT NULL, 
	ridden_turn TEXT, 
	code TEXT, 
	message TEXT, 
	position BIGINT, 
	CONSTRAINT pk_lessons PRIMARY KEY (id), 
	CONSTRAINT fk_lessons_turn FOREIGN KEY(turn) REFERENCES turns (id)
);
INSERT INTO "lessons" VALUES('l1','ada','room','t1','action','learned',4,X'0F0000001500000016000000',X'160000000000000001000000',X'000000000000D03F00000000000000009A9999999999B93F',NULL,1796263831114402,'t2',NULL,NULL,NULL);
CREATE TABLE signals (
	id TEXT NOT NULL, 
	agent TEXT NOT NULL, 
	context TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	turn TEXT, 
	engram TEXT, 
	at_us BIGINT NOT NULL, 
	body JSON, 
	fingerprint TEXT NOT NULL, 
	sender TEXT NOT NULL, 
	private BOOLEAN NOT NULL, 
	state TEXT NOT NULL, 
	code TEXT, 
	message TEXT, 
	position BIGINT, 
	received_at_us BIGINT NOT NULL, 
	arrival BIGINT NOT NULL, 
	lesson TEXT, 
	CONSTRAINT pk_signals PRIMARY KEY (id), 
	CONSTRAINT uq_signals_arrival UNIQUE (arrival), 
	CONSTRAINT fk_signals_lesson FOREIGN KEY(lesson) REFERENCES lessons (id), 
	CONSTRAINT ck_signals_private_is_wordless CHECK (NOT private OR body IS NULL)
);
INSERT INTO "signals" VALUES('s1','ada','room','engram','t1',NULL,5,'{"quote": "the cellar key", "relevance": 0.7}','f1','authenticated',0,'learned',NULL,NULL,NULL,1796263831105361,2,'l1');
ANALYZE "sqlite_master";
INSERT INTO "sqlite_stat1" VALUES('ledger',NULL,'1000000');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_agent_seq','1000000 100000 1');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_context_seq','1000000 100000 1');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_kind_seq','1000000 100000 1');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_agent_context_seq','1000000 100000 30000 1');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_agent_kind_seq','1000000 100000 30000 1');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_context_kind_seq','1000000 100000 30000 1');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_agent_context_kind_seq','1000000 100000 30000 10000 1');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_code_kind_seq','1000000 100000 30000 1');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_agent_code_kind_seq','1000000 100000 30000 10000 1');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_context_code_kind_seq','1000000 100000 30000 10000 1');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_agent_context_code_kind_seq','1000000 100000 30000 10000 3000 1');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_at_us_seq','1000000 2 1');
INSERT INTO "sqlite_stat1" VALUES('ledger','ix_ledger_subject_kind','1000000 3 2');
CREATE TABLE steps (
	id TEXT NOT NULL, 
	lesson TEXT NOT NULL, 
	agent TEXT NOT NULL, 
	number BIGINT NOT NULL, 
	signals JSON NOT NULL, 
	prefix_turn TEXT NOT NULL, 
	prefix_token_count BIGINT NOT NULL, 
	tokens BLOB NOT NULL, 
	targets BLOB NOT NULL, 
	weights BLOB NOT NULL, 
	stable TEXT NOT NULL, 
	served JSON NOT NULL, 
	made_by JSON NOT NULL, 
	forgotten BOOLEAN NOT NULL, 
	learned_token_count BIGINT NOT NULL, 
	loss_before DOUBLE NOT NULL, 
	row_losses_before BLOB NOT NULL, 
	loss_after DOUBLE, 
	row_losses_after BLOB, 
	kl_served DOUBLE, 
	gradient_norm DOUBLE NOT NULL, 
	optimizer TEXT NOT NULL, 
	hyperparameters JSON NOT NULL, 
	lr DOUBLE NOT NULL, 
	chunk_rows BIGINT NOT NULL, 
	shadow_before TEXT NOT NULL, 
	shadow_after TEXT NOT NULL, 
	snapshot TEXT NOT NULL, 
	learning_ms DOUBLE NOT NULL, 
	waited_ms DOUBLE NOT NULL, 
	peak_bytes BIGINT NOT NULL, 
	created_at_us BIGINT NOT NULL, 
	CONSTRAINT pk_steps PRIMARY KEY (id), 
	CONSTRAINT uq_steps_lesson UNIQUE (lesson), 
	CONSTRAINT uq_steps_agent_number UNIQUE (agent, number), 
	CONSTRAINT fk_steps_lesson FOREIGN KEY(lesson) REFERENCES lessons (id), 
	CONSTRAINT fk_steps_prefix_turn FOREIGN KEY(prefix_turn) REFERENCES turns (id)
);
INSERT INTO "steps" VALUES('x1','l1','ada',1,'["s1"]','t1',4,X'0F0000001500000016000000',X'160000000000000001000000',X'000000000000D03F00000000000000009A9999999999B93F','base','{"slot": 0, "runs": [[4, 4]]}','{"model": "tiny"}',0,2,2.5,X'0000000000000440000000000000F87F000000000000C03F',1.5,X'000000000000F83F000000000000F87F000000000000B03F',NULL,0.75,'adamw','{"betas": [0.9, 0.999], "eps": 1e-08}',0.0001,64,'sha0','sha1','shadow/sha1.safetensors',120.5,3.5,8589934592,1796263831130421);
CREATE TABLE turns (
	id TEXT NOT NULL, 
	agent TEXT NOT NULL, 
	context TEXT NOT NULL, 
	private BOOLEAN NOT NULL, 
	lane TEXT NOT NULL, 
	slot BIGINT, 
	adapter TEXT NOT NULL, 
	messages JSON, 
	template_args JSON, 
	prompt_tokens BLOB, 
	reply_tokens BLOB, 
	reply_text TEXT, 
	prompt_token_count BIGINT NOT NULL, 
	reply_token_count BIGINT NOT NULL, 
	cached_token_count BIGINT NOT NULL, 
	finish_reason TEXT, 
	created_at_us BIGINT NOT NULL, 
	first_token_ms DOUBLE, 
	total_ms DOUBLE, 
	CONSTRAINT pk_turns PRIMARY KEY (id), 
	CONSTRAINT ck_turns_private_is_wordless CHECK (NOT private OR (messages IS NULL AND template_args IS NULL AND prompt_tokens IS NULL AND reply_tokens IS NULL AND reply_text IS NULL))
);
INSERT INTO "turns" VALUES('t1','ada','room',0,'alone',0,'base','[{"role": "user", "content": "the cellar key"}]','{"documents": ["the cellar key"]}',X'0B0000000C0000000D000000410D03000F000000',X'150000001600000017000000','the cellar key',5,3,2,'stop',1000,4.5,31.25);
CREATE INDEX ix_turns_agent_context_created_at_us ON turns (agent, context, created_at_us);
CREATE INDEX ix_turns_agent_created_at_us ON turns (agent, created_at_us);
CREATE INDEX ix_turns_private ON turns (agent, context, private) WHERE private = 1;
CREATE INDEX ix_lessons_agent_context_state ON lessons (agent, context, state);
CREATE INDEX ix_lessons_agent_state_code_planned_at_us ON lessons (agent, state, code, planned_at_us);
CREATE INDEX ix_lessons_listed ON lessons (planned_at_us, id, agent, context, state, code);
CREATE INDEX ix_lessons_turn ON lessons (turn);
CREATE INDEX ix_signals_agent_context_state ON signals (agent, context, state);
CREATE INDEX ix_signals_agent_state_code_received_at_us ON signals (agent, state, code, received_at_us);
CREATE INDEX ix_signals_state_arrival ON signals (state, arrival);
CREATE INDEX ix_signals_turn_kind_arrival ON signals (turn, kind, arrival);
CREATE INDEX ix_signals_engram_kind_arrival ON signals (engram, kind, arrival);
CREATE INDEX ix_signals_lesson ON signals (lesson);
CREATE INDEX ix_lesson_signals_signal ON lesson_signals (signal);
CREATE INDEX ix_steps_summary ON steps (agent, number, created_at_us, loss_before, loss_after, learned_token_count, learning_ms, waited_ms);
CREATE UNIQUE INDEX uq_adapters_shadow ON adapters (agent) WHERE state = 'shadow';
CREATE UNIQUE INDEX uq_adapters_stable ON adapters (agent) WHERE state = 'stable';
CREATE INDEX ix_leases_lane ON leases (lane);
CREATE INDEX ix_ledger_agent_seq ON ledger (agent, seq);
CREATE INDEX ix_ledger_context_seq ON ledger (context, seq);
CREATE INDEX ix_ledger_kind_seq ON ledger (kind, seq);
CREATE INDEX ix_ledger_agent_context_seq ON ledger (agent, context, seq);
CREATE INDEX ix_ledger_agent_kind_seq ON ledger (agent, kind, seq);
CREATE INDEX ix_ledger_context_kind_seq ON ledger (context, kind, seq);
CREATE INDEX ix_ledger_agent_context_kind_seq ON ledger (agent, context, kind, seq);
CREATE INDEX ix_ledger_code_kind_seq ON ledger (code, kind, seq) WHERE code IS NOT NULL;
CREATE INDEX ix_ledger_agent_code_kind_seq ON ledger (agent, code, kind, seq) WHERE code IS NOT NULL;
CREATE INDEX ix_ledger_context_code_kind_seq ON ledger (context, code, kind, seq) WHERE code IS NOT NULL;
CREATE INDEX ix_ledger_agent_context_code_kind_seq ON ledger (agent, context, code, kind, seq) WHERE code IS NOT NULL;
CREATE INDEX ix_ledger_at_us_seq ON ledger (at_us, seq);
CREATE INDEX ix_ledger_subject_kind ON ledger (subject, kind);
CREATE TRIGGER ledger_no_update BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_no_delete BEFORE DELETE ON ledger WHEN NOT EXISTS (SELECT 1 FROM ledger WHERE kind = 'archive' AND json_extract(body, '$.through_seq') >= OLD.seq) BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_no_replace BEFORE INSERT ON ledger WHEN EXISTS (SELECT 1 FROM ledger WHERE seq >= NEW.seq) BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
COMMIT;