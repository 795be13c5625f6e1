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
INSERT INTO "adapters" VALUES(1,'ada','shadow',NULL,'sha1','shadow/sha1.safetensors',1,1796136929597120);
INSERT INTO "adapters" VALUES(2,'ada','kept',0,'sha0','shadow/sha0.safetensors',0,1796136929584710);
INSERT INTO "adapters" VALUES(3,'ada','stable',1,'sha1','shadow/sha1.safetensors',1,1796136929600643);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
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
INSERT INTO "ledger" VALUES(1,1796136929580795,'turn','ada','room',NULL,'t1','{"adapter": "base", "cached_token_count": 2, "finish_reason": "stop", "first_token_ms": 4.5, "private": false, "prompt_token_count": 5, "reply_token_count": 3, "slot": 0, "total_ms": 31.25}','0000000000000000000000000000000000000000000000000000000000000000','df6b6c6a9b14ce1407f9fa148f6aec3dd93c2703083409d0671ec72812f9e2a0');
INSERT INTO "ledger" VALUES(2,1796136929582349,'signal','ada','room',NULL,'s1','{"engram": null, "fingerprint": "f1", "kind": "engram", "state": "received", "turn": "t1"}','df6b6c6a9b14ce1407f9fa148f6aec3dd93c2703083409d0671ec72812f9e2a0','9e6b065e776f2cbefc3ef803fca71b2fc2d3f4a96c6bec119b03c79940eacf50');
INSERT INTO "ledger" VALUES(3,1796136929585724,'promotion','ada',NULL,NULL,'ada','{"sha": "sha0", "snapshot": "shadow/sha0.safetensors", "version": 0}','9e6b065e776f2cbefc3ef803fca71b2fc2d3f4a96c6bec119b03c79940eacf50','4275e8cdca6e31676d37b4b23285357e2106773287505bcd724b549f7dd4a011');
INSERT INTO "ledger" VALUES(4,1796136929591690,'lesson','ada','room',NULL,'l1','{"kind": "action", "prefix_token_count": 4, "rows": 3, "signals": {"s1": "makes"}, "state": "planned", "turn": "t1", "weight_sum": 0.35}','4275e8cdca6e31676d37b4b23285357e2106773287505bcd724b549f7dd4a011','5dc9b2690434c0f90b8f08e233a7693b67cd054d49bff1a3912097f728b82ed1');
INSERT INTO "ledger" VALUES(5,1796136929593700,'lesson','ada','room',NULL,'l1','{"ridden_turn": "t2", "state": "riding"}','5dc9b2690434c0f90b8f08e233a7693b67cd054d49bff1a3912097f728b82ed1','b0bf4f6d8079791751d8674e53c87ce0410d0002ed9458ffc2e8356f8716ea50');
INSERT INTO "ledger" VALUES(6,1796136929599282,'step','ada','room',NULL,'x1','{"gradient_norm": 0.75, "kl_served": null, "learning_ms": 120.5, "lesson": "l1", "loss_before": 2.5, "lr": 0.0001, "number": 1, "peak_bytes": 8589934592, "rows": 3, "shadow_after": "sha1", "shadow_before": "sha0", "signals": ["s1"], "snapshot": "shadow/sha1.safetensors", "waited_ms": 3.5}','b0bf4f6d8079791751d8674e53c87ce0410d0002ed9458ffc2e8356f8716ea50','e762af867298f9fe91180eb61b481122f35f744cddb1a34c102611dbbbac254d');
INSERT INTO "ledger" VALUES(7,1796136929601126,'promotion','ada',NULL,NULL,'ada','{"replaces": 0, "sha": "sha1", "snapshot": "shadow/sha1.safetensors", "step_number": 1, "version": 1}','e762af867298f9fe91180eb61b481122f35f744cddb1a34c102611dbbbac254d','f32ecd06096d095d9bc948d9f9f1a2fc9ad92f166914b569c6cbf17528a7547f');
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
INSERT INTO "lessons" VALUES('l1','ada','room','t1','action','learned',4,X'0F0000001500000016000000',X'160000000000000001000000',X'000000000000D03F00000000000000009A9999999999B93F',NULL,1796136929588346,'t2',NULL,NULL,NULL);
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
INSERT INTO "signals" VALUES('s1','ada','room','engram','t1',NULL,5,'{"quote": "the cellar key", "relevance": 0.7}','f1',0,'learned',NULL,NULL,NULL,1796136929582349,2,'l1');
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
	loss_before DOUBLE NOT NULL, 
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
INSERT INTO "steps" VALUES('x1','l1','ada',1,'["s1"]','t1',4,X'0F0000001500000016000000',X'160000000000000001000000',X'000000000000D03F00000000000000009A9999999999B93F',2.5,NULL,0.75,'adamw','{"betas": [0.9, 0.999], "eps": 1e-08}',0.0001,64,'sha0','sha1','shadow/sha1.safetensors',120.5,3.5,8589934592,1796136929597120);
CREATE TABLE turns (
	id TEXT NOT NULL, 
	agent TEXT NOT NULL, 
	context TEXT NOT NULL, 
	private BOOLEAN NOT NULL, 
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
INSERT INTO "turns" VALUES('t1','ada','room',0,0,'base','[{"role": "user", "content": "the cellar key"}]','{"documents": ["the cellar key"]}',X'0B0000000C0000000D000000410D03000F000000',X'150000001600000017000000','the cellar key',5,3,2,'stop',1000,4.5,31.25);
CREATE INDEX ix_turns_agent_context_created_at_us ON turns (agent, context, created_at_us);
CREATE INDEX ix_turns_agent_created_at_us ON turns (agent, created_at_us);
CREATE INDEX ix_lessons_agent_context_state ON lessons (agent, context, state);
CREATE INDEX ix_lessons_turn ON lessons (turn);
CREATE INDEX ix_signals_agent_context_state ON signals (agent, context, state);
CREATE INDEX ix_signals_state_arrival ON signals (state, arrival);
CREATE INDEX ix_signals_turn_kind_arrival ON signals (turn, kind, arrival);
CREATE INDEX ix_signals_engram_kind_arrival ON signals (engram, kind, arrival);
CREATE INDEX ix_signals_lesson ON signals (lesson);
CREATE INDEX ix_lesson_signals_signal ON lesson_signals (signal);
CREATE UNIQUE INDEX uq_adapters_shadow ON adapters (agent) WHERE state = 'shadow';
CREATE UNIQUE INDEX uq_adapters_stable ON adapters (agent) WHERE state = 'stable';
CREATE INDEX ix_ledger_agent_seq ON ledger (agent, seq);
CREATE INDEX ix_ledger_context_seq ON ledger (context, seq);
CREATE INDEX ix_ledger_kind_seq ON ledger (kind, seq);
CREATE INDEX ix_ledger_code_seq ON ledger (code, seq);
CREATE INDEX ix_ledger_at_us ON ledger (at_us);
CREATE INDEX ix_ledger_subject_kind ON ledger (subject, kind);
CREATE TRIGGER ledger_no_update BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_no_delete BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_no_replace BEFORE INSERT ON ledger WHEN EXISTS (SELECT 1 FROM ledger WHERE seq >= NEW.seq) BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
COMMIT;
