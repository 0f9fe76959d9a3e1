# ruff: noqa: E501  (a row is a test, whatever its name is)
"""For each mutant one test that notices it in milliseconds, without a seed: file, test, and the mutants that the test
notices. ``test_directed_mutants`` runs them; a mutant without a test fails it. The random search of ``run`` stays beside
it, because a mutant stands for all faults of its kind."""

from __future__ import annotations

_TESTS: dict[str, dict[str, str]] = {
    "unit/controller/test_raft_traps.py": {
        "test_a_voter_says_yes_once_in_a_term_also_after_a_restart": "ForgetsItsVote ForgetsItsTerm VotesTwice",
        "test_a_candidate_without_all_that_is_committed_gets_no_vote": "VotesForAnybody",
        "test_an_entry_of_an_earlier_term_is_not_committed_by_counting": "CommitsWhatOthersProposed",
        "test_a_sole_voter_commits_nothing_that_its_own_disk_may_lose": "CountsWhatItHasNotWritten DoesNotCompareLogs",
        "test_a_heartbeat_is_answered_before_the_disk_has_the_entries_that_came_with_it": "AnswersBeforeItsDisk",
        "test_a_wiped_voter_is_a_stranger": "TakesMailOfAnotherDisk",
        "test_reads_of_one_turn_share_one_round_of_heartbeats": "ReadsWithoutAsking",
        "test_an_answer_from_before_a_read_proves_nothing": "CountsOldRounds",
        "test_the_one_whose_removal_was_not_committed_may_still_be_needed": "StandsOnlyWhileItVotes",
        "test_a_replica_that_returns_with_a_higher_term_is_taken_back": "NeverTellsAStaleLeader",
        "test_old_answers_that_arrive_late_keep_no_leader": "HearsOldAnswers",
        "test_a_damaged_snapshot_is_asked_for_anew": "NeverGoesBackToASnapshot",
        "test_a_snapshot_taken_during_a_change_of_voters_has_those_of_its_own_end": "InstallsWhatItHas",
        "test_a_set_of_voters_that_is_cut_off_again_does_not_count": "KeepsVotersThatWereCut",
    },
    "unit/controller/test_raft_values.py": {
        "test_rafts_own_entries_have_the_same_bytes_in_every_log": "CommitsWhatItHasNotCompared",
    },
    "unit/controller/test_raft_transcripts.py": {
        "test_a_script_leads_to_its_transcript": "ChangesVotersWhileTheyChange",
    },
    "unit/controller/test_raft_more_traps.py": {
        "test_a_read_after_a_change_of_leaders_waits_for_an_entry_of_the_new_term": "ReadsBeforeItsTerm",
        "test_who_asks_again_and_again_to_hand_over_cannot_keep_a_leader_from_doubting_itself": "NeverDoubtsItself",
    },
    "unit/controller/test_raft_lost_connections.py": {
        "test_a_follower_that_loses_the_leader_stands_within_three_ticks": "RaisesItsTermWhenItLosesTheLeader",
        "test_a_leader_that_is_back_is_given_the_whole_time_out_again": "KeepsTheShortTimeout",
    },
    "unit/controller/test_older_copies.py": {
        "test_a_voter_that_lost_its_vote_is_stopped": "RemembersNobody",
        "test_a_started_voter_answers_no_vote_request_before_the_others_have_answered": "VotesBeforeItIsTold",
        "test_a_directory_that_was_found_to_be_older_is_never_used_again": "VoteInThePageCache",
    },
    "unit/controller/test_controller_quorum_disks.py": {
        "test_a_failed_disk_ends_the_controller": "AnswersBeforeTheDisk",
        "test_a_restart_begins_with_the_snapshot_and_the_log_behind_it": "SnapshotInThePageCache",
    },
    "scenarios/log/test_failed_flushes.py": {
        "test_pages_that_the_cache_drops_while_recovery_scans_are_not_accepted": "RecoveryTrustsThePageCache LogsTrustThePageCache",
    },
    "unit/controller/test_controller_quorum.py": {
        "test_a_leader_again_has_forgotten_what_was_overwritten": "TruncationForgotten",
        "test_a_write_is_answered_when_a_majority_has_it_and_every_follower_shows_it": "LeadsBeforeItKnows",
        "test_nothing_is_answered_before_a_majority_has_it_on_disk": "AnswersBeforeTheCommit",
        "test_a_decision_that_the_next_leader_commits_is_answered_as_done": "RefusesWhatMayHappen",
        "test_a_decision_that_others_overwrite_is_refused_and_may_be_asked_again": "AppliesWhatIsNotCommitted",
    },
    "simulation/test_simulated_full_disks.py": {
        "test_a_refused_append_leaves_nothing_and_passes": "KeepsRefusedEntries",
        "test_a_kill_that_leaves_entries_of_a_refused_append_passes": "AppendsBehindARefusedEntry",
        "test_a_refused_term_is_out_of_its_file_before_the_next_entry": "RefusedTermStaysInItsFile",
    },
    "unit/controller/test_starts_on_a_full_disk.py": {
        "test_a_start_that_needs_space_says_that_the_disk_is_full": "RawErrorAtAFullStart",
    },
    "unit/controller/test_cluster_speculation.py": {
        "test_resigning_drops_what_was_in_flight": "SpeculationSurvives",
    },
    "unit/controller/test_cluster_elections.py": {
        "test_a_topic_that_forbids_it_is_not_overruled": "elr-is-never-cleared unclean-without-being-asked",
        "test_the_last_known_leader_leads_again_when_all_that_were_eligible_are_lost": "unclean-restart-stays-eligible crash-keeps-all-eligible",
        "test_without_anybody_who_works_even_an_operator_gets_no_leader": "any-replica-leads",
        "test_the_controllers_file_allows_it": "fenced-stay-in-sync",
        "test_a_minimum_that_is_lowered_ends_the_elr_in_the_same_batch": "minimum-lowered-elr-stays",
        "test_a_replica_that_was_made_anew_is_eligible_for_nothing": "fresh-replica-stays-eligible",
        "test_another_controller_goes_on_where_the_first_one_stopped": "unfenced-before-it-is-settled",
    },
    "unit/controller/test_cluster_directories.py": {
        "test_a_lost_replica_may_be_an_empty_one_while_a_directory_is_gone": "last-known-leads-beside-an-elr",
    },
    "unit/controller/test_brokers_that_cannot_lead.py": {
        "test_when_no_in_sync_replica_can_lead_the_leader_stays_and_nothing_is_elected_again_and_again": "leader-epoch-stays",
        "test_only_in_sync_replicas_are_elected": "LeavesTheLeadWithAFullDisk",
    },
    "unit/controller/test_cluster_isr.py": {
        "test_a_former_leader_is_fenced_and_a_follower_is_no_leader": "stale-leader-alters-the-isr",
        "test_a_request_that_knows_less_than_was_decided_is_refused": "stale-partition-epoch",
        "test_a_follower_of_another_life_does_not_join": "former-life-joins-the-isr",
        "test_a_new_controller_does_not_know_who_knows_the_minimum": "leader-that-does-not-know-the-minimum",
    },
    "unit/controller/test_cluster_grace.py": {
        "test_the_late_end_of_an_older_stream_says_nothing": "old-streams-end-fences",
        "test_a_heartbeat_within_the_grace_ends_it_and_moves_nothing": "heartbeat-does-not-end-the-grace",
        "test_a_new_leader_starts_no_grace_for_anybody": "new-leader-starts-graces new-leader-counts-before-it-serves",
    },
    "unit/controller/test_nodes_that_reach_a_new_leader.py": {
        "test_the_window_is_counted_from_the_first_contact_of_any_node": "new-leader-awaits-the-dead-for-a-session",
        "test_a_leader_that_stood_still_counts_anew": "new-leader-counts-through-its-pause",
        "test_a_coordinator_alone_begins_the_window_of_the_brokers": "silent-coordinator-stays coordinators-end-with-the-window",
        "test_two_nodes_of_one_role_that_died_with_the_leader_are_fenced_together": "coordinators-await-a-session",
    },
    "unit/controller/test_cluster_producer_ids.py": {
        "test_blocks_follow_each_other_also_those_in_flight": "block-given-twice",
    },
    "unit/controller/test_cluster_shards.py": {
        "test_the_last_coordinator_may_stop_too_and_its_shards_are_nobodys": "shard-epoch-stays",
        "test_a_process_that_comes_back_under_its_name_gets_new_epochs_for_the_same_shards": "successor-inherits-epochs former-coordinator-goes-on",
    },
    "unit/controller/test_cluster_reassignment.py": {
        "test_cancelled_it_goes_back_to_where_it_was": "completes-early",
        "test_an_abandoned_replica_stays_while_too_few_others_are_in_sync": "leaves-too-few",
        "test_an_operators_wish_waits_for_a_broker_that_is_away": "drained-takes-replicas",
        "test_what_waits_is_listed_as_what_it_will_be_and_can_be_cancelled": "no-pace",
    },
    "unit/controller/test_cluster_balancing.py": {
        "test_rebalancing_can_be_switched_off_also_in_the_middle": "rebalances-when-off",
        "test_a_broker_that_has_replicas_or_is_a_target_is_not_unregistered": "unregistered-with-replicas",
    },
    "unit/controller/test_cluster_features.py": {
        "test_the_level_is_not_raised_over_the_head_of_a_node_that_does_not_know_it": "level-over-their-heads",
        "test_a_node_that_does_not_know_the_level_is_not_registered": "stranger-registers",
        "test_an_old_log_opens_and_goes_on_at_its_level_until_it_is_raised": "newer-records-too-early",
    },
    "unit/controller/test_outdated_directories.py": {
        "test_a_partition_with_one_replica_leads_at_once_with_a_warning": "TrustsOlderCopies",
        "test_a_report_of_an_eligible_replica_elects_it": "KeepsLeadersThatLackRecords",
    },
    "unit/broker/test_partition_follower.py": {
        "test_a_follower_keeps_what_was_committed_if_its_leader_lacks_it": "CutsWhatWasCommitted",
        "test_the_high_watermark_is_the_leader_s_as_far_as_the_log_goes": "CutsToTheHighWatermark FollowersOvertakeTheMark",
        "test_the_leader_s_log_start_is_followed_no_further_than_the_high_watermark": "FollowersDeleteNothing",
    },
    "unit/broker/test_replication_joining.py": {
        "test_logs_are_compared_by_epochs": "ComparesNoLogs TrustsUnknownEpochs",
        "test_epochs_that_are_over_or_not_known_yet_are_refused": "FencesNoReader",
    },
    "unit/broker/test_partition_leader_isr.py": {
        "test_a_shrink_counts_when_it_is_confirmed_and_not_before": "CountsAnUnconfirmedShrink",
        "test_metadata_of_the_present_epoch_does_not_end_a_question": "ForgetsWhomItAskedFor",
        "test_an_expansion_whose_answer_was_lost_is_asked_again_unchanged_and_counts_meanwhile": "TakesSilenceForNo",
        "test_a_refusal_after_an_attempt_without_an_answer_leaves_the_question_open": "BelievesAnIneligibleReplica EndsNoPartitionEpoch CountsOneAttempt",
        "test_the_high_watermark_stands_still_below_min_insync_replicas": "CommitsBelowMinInsync",
        "test_a_follower_joins_at_the_high_watermark_and_not_below_the_beginning_of_the_epoch": "JoinsBelowTheEpoch",
        "test_a_follower_below_the_high_watermark_does_not_join": "JoinsBelowTheHighWatermark",
        "test_a_high_watermark_below_the_beginning_of_the_epoch_tells_nobody_what_the_latest_offset_is": "TellsTheLatestTooSoon",
        "test_a_deletion_waits_for_members_that_have_not_joined": "DeletesWaitForNobody",
        "test_deletions_wait_for_the_log_starts_of_the_replicas_that_are_there": "LowWatermarkForgetsMembers LowWatermarkIsTheLeaders",
        "test_a_new_leader_waits_for_every_in_sync_follower_to_speak": "LeadsFromItsEnd",
    },
    "unit/broker/test_isr_keeper.py": {
        "test_a_former_life_of_a_broker_does_not_join": "TakesBackFormerLives",
    },
    "scenarios/broker/test_followers.py": {
        "test_a_damaged_follower_is_made_anew_when_everybody_knows_and_not_before": "BeginsAnewUntold",
        "test_a_high_watermark_that_was_checkpointed_is_where_a_follower_begins": "CheckpointsTheLogEnd",
    },
    "unit/broker/test_partition_leader.py": {
        "test_producers_are_answered_in_order_and_only_up_to_the_high_watermark": "LeaderCountsItsPageCache",
    },
    "scenarios/broker/test_followers_and_their_disks.py": {
        "test_a_directory_that_fails_takes_its_followers_with_it": "FollowersCountTheirPageCache",
    },
    "unit/log/test_producer_state.py": {
        "test_a_batch_sent_again_is_known_by_the_last_five": "TakesDuplicates RepeatsAreNew",
        "test_batches_of_a_producer_follow_each_other": "TakesGaps",
    },
    "scenarios/log/test_producers_expire.py": {
        "test_a_new_leader_counts_from_the_moment_at_which_it_got_the_batch": "ExpiresByRecordTime FollowersForgetProducers",
        "test_a_cut_forgets_nobody_who_is_still_in_the_log": "RemembersWhatWasCut",
        "test_after_a_restart_the_time_counts_from_the_load_on": "ForgetsProducersAtTheStart",
    },
    "scenarios/broker/test_idempotent_producers.py": {
        "test_a_batch_sent_again_waits_for_the_commit_of_the_first_one_and_gets_its_offset": "AnswersDuplicatesAtOnce",
    },
    "scenarios/log/test_log_retention.py": {
        "test_a_log_never_gets_smaller_than_its_retention_bytes": "RetentionTakesOneMore",
    },
    "scenarios/broker/test_broker_upkeep_rooms.py": {
        "test_retention_never_reaches_above_the_high_watermark": "RetentionForgetsTheMark",
        "test_compaction_never_reaches_above_the_high_watermark": "CompactsWhatIsNotCommitted",
    },
    "scenarios/broker/test_replicas_that_are_read.py": {
        "test_deleting_records_waits_for_the_replicas_that_are_there": "DeletesAboveTheMark",
    },
    "scenarios/log/test_replicated_appends.py": {
        "test_an_empty_log_that_opens_again_keeps_the_epoch_of_its_deleted_records": "LogStartInMemoryOnly",
    },
    "unit/log_compaction/test_cleaning.py": {
        "test_keys_of_the_log_that_was_cleaned_before_replace_nothing": "CompactsWithAnOldMap",
    },
    "scenarios/log/test_producers_in_the_log.py": {
        "test_an_epoch_without_a_record_goes_when_the_log_is_cut_at_its_end": "CutsKeepTheirEpochs",
        "test_a_log_that_begins_where_its_leader_deleted_records_gets_the_leader_s_producers": "RestartsForgetProducers",
    },
    "unit/log/test_log_files_and_formats.py": {
        "test_epoch_ends_are_answered_as_kafka_does": "EpochsBeginLate",
    },
    "scenarios/log/test_directory_writer.py": {
        "test_a_turn_in_the_loop_flushes_when_what_it_wrote_is_on_its_way_to_the_followers": "AnswersBeforeItForces",
    },
    "scenarios/log/test_fenced_appends.py": {
        "test_the_coordinator_before_writes_no_more_once_its_successor_has_claimed": "ShardsHaveNoFence",
    },
    "unit/coordinator/test_runtime_shard.py": {
        "test_somebody_elses_record_in_between_means_replay": "AppendsAnywhere",
        "test_nobody_is_answered_and_nothing_pushed_before_the_commit": "RepliesBeforeTheCommit PushesBeforeTheCommit MarkersBeforeTheDecisionIsCommitted",
        "test_an_append_whose_outcome_is_unknown_is_looked_up_in_the_log": "TakesSilentAppendsForDone",
        "test_back_pressure_refuses_clients_and_never_the_news_of_the_coordinator_itself": "PressureDropsNews",
        "test_a_fenced_answer_is_refused_once_a_successor_has_claimed": "VouchesWithoutTheLog",
        "test_what_is_asked_while_an_append_is_under_way_flies_together_in_the_next": "AnswersBeforeTheDecisionIsCommitted",
    },
    "unit/coordinator/test_runtime_shards.py": {
        "test_a_failed_append_is_reported_and_the_shard_comes_back_with_a_new_state_machine": "ReplaysShortOfTheClaim",
        "test_a_shard_begins_with_the_topics_there_are_and_hears_of_changes": "TellsNewShardsNoTopics",
    },
    "unit/coordinator/test_group_members.py": {
        "test_a_heartbeat_that_crossed_an_assignment_lets_go_of_nothing": "CountsCrossingHeartbeats",
        "test_a_killed_member_is_gone_after_the_grace": "GraceIsShort",
        "test_an_older_stream_says_nothing_any_more": "AnyStreamBreaksIt",
        "test_a_live_static_member_is_not_replaced": "ReplacesAtOnce",
        "test_a_change_of_coordinators_costs_no_member_anything": "HoldsSilenceAgainstThem",
        "test_partitions_that_are_added_are_read_at_once": "SeesNoTopics",
        "test_a_commit_needs_the_member_s_epoch": "CommitsOfAnyEpoch",
        "test_strangers_commit_only_to_groups_without_members": "StrangersCommit",
    },
    "unit/coordinator/test_group_members_too_slow.py": {
        "test_a_member_that_does_not_revoke_in_time_is_removed_and_informed": "GivesBeforeItIsLetGo",
        "test_the_rebalance_time_out_begins_when_the_member_says_that_it_knows": "UntoldMembersAreLate",
        "test_who_follows_waits_as_long_for_whoever_was_to_let_go_and_may_read_on_by_the_metadata": "BrokenMeansGone",
    },
    "unit/coordinator/test_taken_partitions.py": {
        "test_a_taken_partition_cannot_be_committed_before_its_release": "ForgetsWhatWasTaken",
    },
    "unit/client/test_group_member.py": {
        "test_offsets_of_before_another_member_had_the_partition_are_not_used": "AssignGoesOn",
        "test_a_member_without_a_connection_stops_at_its_rebalance_timeout": "ReadsWithoutALease ReadsOnAfterALateRelease HandsOutBeforeItLooks",
        "test_a_vacancy_that_was_filled_by_its_own_coordinator_means_nothing": "AnyVacancyCounts",
        "test_metadata_that_are_never_new_enough_renew_nothing": "AllMetadataAreNew",
        "test_news_that_come_after_the_grace_come_too_late": "LateNewsCounts",
        "test_the_next_owner_ends_the_grace_and_renews_nothing": "AnyOwnerRenews",
        "test_what_was_assigned_before_the_lease_was_over_is_not_begun_before_an_answer": "BeginsWhatIsNotItsOwn",
        "test_what_goes_goes_before_anything_comes": "LetsGoInWordsOnly",
    },
    "unit/coordinator/test_open_transactions_of_one_partition.py": {
        "test_a_request_that_arrives_twice_is_no_later_write": "TheLastMarkerWins RequestsWithoutNumbers",
    },
    "unit/coordinator/test_offset_retention.py": {
        "test_an_active_group_never_loses_an_offset_that_it_reads_from_whatever_the_clock_does": "ExpiresUnderMembers",
    },
    "unit/coordinator/test_offset_shard_state.py": {
        "test_a_group_and_its_offsets_go_together": "ForgetsTombstones",
        "test_a_clock_that_is_set_after_the_loading_makes_an_unknown_topics_offset_no_offset_of_none": "TheCommitsTimeTellsNamesakes",
    },
    "unit/broker/test_timestamps_of_internal_topics.py": {
        "test_a_coordinator_with_another_time_than_the_leader_appends_and_its_times_stay": "LeadersCheckTheTimesOfGroups LeadersCheckTheTimesOfTransactions",
    },
    "unit/coordinator/test_ownership.py": {
        "test_the_answer_to_a_question_of_an_earlier_state_machine_proves_nothing": "GivesAwayWithoutProof",
    },
    "unit/coordinator/test_transactions.py": {
        "TestPrepared::test_a_new_producer_keeps_it_and_the_token_stays_valid": "EndsForAnyEpoch KeepsNothingPrepared",
        "TestPrepared::test_an_old_client_that_ends_a_kept_one_gets_the_identity_that_is_stored": "AddsForAnyEpoch",
        "test_a_late_report_of_another_marker_counts_for_nothing": "EndsWithoutANewEpoch",
        "test_a_new_producer_fences_the_former_one_and_aborts_what_it_left_open": "GivesAnEpochTwice TakesWhatIsOpen",
        "test_no_epoch_and_no_producer_id_left_changes_nothing": "GivesTheLastEpochAway",
        "test_an_abort_without_a_partition_moves_the_epoch_and_needs_no_marker": "RepeatedEndsAreFenced",
        "test_a_transaction_times_out_and_its_producer_aborts_it_too": "AnyOutcomeIsRight",
        "test_a_transaction_from_its_first_partition_to_its_last_marker": "AddsBeforeTheMarkers AddsWithoutARecord",
        "test_a_new_owner_of_the_shard_asks_for_all_markers_again": "CompletesAfterOneMarker ForgetsMarkersAtHandOver",
        "test_a_new_owner_of_the_shard_counts_from_its_take_over_whatever_the_owners_clocks_say": "ForgetsTimeoutsAtHandOver TimesOutTooSoon CountsFromTheStart",
        "TestPrepared::test_what_timed_out_is_aborted_and_the_producer_goes_on": "NeverTimesOut",
        "TestPrepared::test_javas_enable_2pc_has_no_time_out": "PreparedOnesTimeOut",
        "TestPrepared::test_the_token_of_an_earlier_transaction_completes_nothing": "CompletesAnyToken",
    },
    "unit/coordinator/test_marker_sender.py": {
        "test_what_a_leader_refuses_is_asked_again_and_only_that": "RefusedMarkersCount SendsMarkersOnce MarksOnePartition",
    },
    "scenarios/broker/test_transactional_appends.py": {
        "test_producers_are_described_and_a_hanging_transaction_is_aborted": "MarkersAlwaysCommit",
        "test_a_marker_that_is_not_committed_in_time_is_asked_for_again": "MarkersAreAnsweredWhenAppended RepeatedMarkersAreAnsweredAtOnce",
        "test_a_refusal_of_the_coordinator_goes_to_all_waiting_batches_in_order": "VerifiesNothing",
        "test_transactions_in_a_row_are_pipelined_behind_their_markers": "VerifiesAProducerOnce",
    },
    "unit/log/test_transaction_rules.py": {
        "test_a_repeated_marker_waits_for_the_first_one_and_appends_nothing": "LateMarkersEnd OldMarkersEnd",
    },
    "unit/broker/test_verifier.py": {
        "test_a_refusal_is_translated_for_the_producer": "ARefusalIsAYes",
        "test_retriable_errors_are_retried_and_the_new_owner_of_a_shard_is_asked": "NoAnswerIsAYes",
        "test_partitions_of_a_producer_share_a_request": "VerifiesTheFirstPartition",
    },
    "scenarios/log/test_transactions_in_the_log.py": {
        "test_an_open_transaction_holds_the_stable_offset_until_its_marker_is_committed": "AllIsStable TheNewestTransactionIsTheFirst NothingIsAborted AbortsCountAsCommits",
        "test_records_and_aborted_transactions_are_of_one_state_of_the_log": "AbortedOnlyInTheLastSegment",
    },
    "scenarios/broker/test_read_committed.py": {
        "test_a_follower_and_the_leader_that_it_becomes_answer_as_the_leader_before": "FollowersReadEverything",
    },
}

#: The id of the test, for each mutant.
NOTICED_BY = {
    mutant: f"tests/{path}::{test}"
    for path, tests in _TESTS.items()
    for test, mutants in tests.items()
    for mutant in mutants.split()
}
